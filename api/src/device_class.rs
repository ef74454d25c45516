//! The DeviceClasses that the chart makes.
//!
//! A selector must hold on devices of every version of the driver that may publish beside it: a driver that says no `type` has
//! whole GPUs only. It reads attributes by `has(...)`: a look at what is missing is an error in kube-scheduler, which then
//! schedules no pod that asks for the class.

use crate::keys;

/// A DeviceClass of the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShippedClass {
    /// Its name.
    pub name: &'static str,
    /// The CEL expression of its one selector.
    pub selector: &'static str,
}

/// Whole GPUs.
pub const GPU: ShippedClass = ShippedClass {
    name: keys::DEVICE_CLASS_GPU,
    selector: "device.driver == 'gpu.muster.dev' && (!has(device.attributes['gpu.muster.dev'].type) || \
               device.attributes['gpu.muster.dev'].type == 'gpu')",
};

/// MIG slices.
pub const MIG: ShippedClass = ShippedClass {
    name: keys::DEVICE_CLASS_MIG,
    selector: "device.driver == 'gpu.muster.dev' && has(device.attributes['gpu.muster.dev'].type) && \
               device.attributes['gpu.muster.dev'].type == 'mig'",
};

/// Either.
pub const GPU_OR_SLICE: ShippedClass = ShippedClass {
    name: keys::DEVICE_CLASS_GPU_OR_SLICE,
    selector: "device.driver == 'gpu.muster.dev' && (!has(device.attributes['gpu.muster.dev'].type) || \
               device.attributes['gpu.muster.dev'].type in ['gpu', 'mig'])",
};

/// All of them.
pub const SHIPPED: [ShippedClass; 3] = [GPU, MIG, GPU_OR_SLICE];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_of_our_driver_and_looks_at_nothing_that_a_device_may_lack() {
        for class in SHIPPED {
            let of_driver = format!("device.driver == '{}' && ", keys::DRIVER);
            assert!(class.selector.starts_with(&of_driver), "{class:?}");
            let field = format!("device.attributes['{}'].type", keys::DRIVER);
            let first = class.selector.find(&field).unwrap();
            assert!(class.selector[..first].ends_with("has("), "{class:?}");
        }
    }
}
