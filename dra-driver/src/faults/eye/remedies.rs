//! What is done about faults, as it is remembered.

use muster_device::faults::{Cause, Device, FaultClass, Observation, Scope};

use super::Eye;

impl Eye {
    /// Looks at one GPU. Blocking.
    pub(in crate::faults) fn look_at_one(&self, uuid: &str) {
        let gpus = self.gpus();
        if let Some(gpu) = gpus.iter().find(|known| known.gpu.uuid == uuid) {
            self.look_at(gpu);
        }
    }

    /// Notes that this is the `number`th reset of a GPU for what is wrong with it. Said twice it counts once.
    pub(in crate::faults) fn count_reset(&self, uuid: &str, number: u32) {
        let is_news = self.state().count_reset(uuid, number);
        if is_news {
            self.news.notify_one();
        }
    }

    /// A GPU was reset, which was begun when the observations had reached this number.
    pub(in crate::faults) fn note_reset(&self, uuid: &str, mark: u64) {
        self.forget_failed_validations(uuid);
        self.state().note_reset(uuid, mark);
    }

    /// Something was found of a GPU that neither NVML nor the log tells.
    pub(in crate::faults) fn report(&self, uuid: &str, class: FaultClass, cause: Cause) {
        let observation = Observation {
            class,
            scope: Scope::Gpu,
            cause,
        };
        let (catalogue, known) = (self.catalogue(), self.known());
        let device = Device::Uuid(uuid.to_owned());
        self.saw(&catalogue, &known, &device, observation);
    }
}
