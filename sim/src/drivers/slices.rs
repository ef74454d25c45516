//! Slices that an instance makes or removes, step by step, under the lock of each one's GPU.

use std::collections::VecDeque;

use muster_dra_driver::prepare::{
    CallId, Fence, Foreign, Input, Lying, Made, MadeSlice, PlacedSlice, Record, RemovalId,
    SliceFailure, SliceOrder,
};

use crate::{gpu_node::GpuNode, matrix::Mishap};

/// Slices that are being made.
#[derive(Clone, Debug)]
pub(super) struct Making {
    call: CallId,
    fence: Fence,
    todo: VecDeque<SliceOrder>,
    made: Vec<MadeSlice>,
    /// The lock that it holds: the first of what is to be done has its GPU instance.
    pub(super) lock: Option<u64>,
}

/// Slices that are being removed.
#[derive(Clone, Debug)]
pub(super) struct Removing {
    removal: RemovalId,
    fence: Fence,
    todo: VecDeque<PlacedSlice>,
    failed: Option<SliceFailure>,
    /// The lock that it holds: the first of what is to be done has lost its compute instance.
    pub(super) lock: Option<u64>,
}

fn failure(message: impl Into<String>) -> SliceFailure {
    SliceFailure {
        reason: None,
        foreign: None,
        message: message.into(),
    }
}

fn record<'node>(node: &'node GpuNode, fence: &Fence) -> Option<&'node Record> {
    node.disk.records.get(&fence.claim)
}

impl Making {
    pub(super) fn new(call: CallId, fence: Fence, slices: Vec<SliceOrder>) -> Self {
        Self {
            call,
            fence,
            todo: slices.into(),
            made: Vec::new(),
            lock: None,
        }
    }

    /// The GPU that is next.
    pub(super) fn gpu(&self) -> Option<&str> {
        self.todo.front().map(|order| order.gpu.as_str())
    }

    /// Half a slice; what the machine is told, once there is nothing more to do. The lock is free, or its own.
    pub(super) fn step(&mut self, node: &mut GpuNode, mishap: Option<Mishap>) -> Option<Input> {
        let Some(order) = self.todo.front().cloned() else {
            let made = Made {
                slices: std::mem::take(&mut self.made),
                ..Made::default()
            };
            return Some(Input::SlicesMade(self.call, Ok(made)));
        };
        let done = match (self.lock, mishap) {
            (_, Some(Mishap::Refused)) => Err(failure("NVML refuses")),
            (None, _) => self.begin(&order, node),
            (Some(_), _) => {
                let made = node.slices.make_compute_instance(&order);
                made.map(Some).map_err(failure)
            }
        };
        match done {
            Ok(None) => None,
            Ok(Some(made)) => {
                self.unlock(node);
                self.made.push(made);
                self.todo.pop_front();
                None
            }
            Err(failure) => {
                self.unlock(node);
                Some(Input::SlicesMade(self.call, Err(failure)))
            }
        }
    }

    /// Looks at what is there, and makes the GPU instance unless it is.
    fn begin(
        &mut self,
        order: &SliceOrder,
        node: &mut GpuNode,
    ) -> Result<Option<MadeSlice>, SliceFailure> {
        if !Record::lets_make(record(node, &self.fence), &self.fence) {
            return Err(failure("the record does not allow it any more"));
        }
        node.slices.begin_change(&order.gpu);
        let live = node.slices.live(&order.gpu);
        match order.lying(&live) {
            Lying::Same(instance) if order.is_new => {
                let gpu = &order.gpu;
                let foreign = PlacedSlice {
                    gpu: gpu.clone(),
                    gpu_instance_profile: instance.profile,
                    placement: instance.placement,
                    uuid: instance.uuid.clone(),
                };
                return Err(SliceFailure {
                    foreign: Some(Box::new(foreign)),
                    ..failure(Foreign { gpu, instance }.to_string())
                });
            }
            Lying::Same(instance) => {
                if let Some(made) = MadeSlice::of(instance) {
                    return Ok(Some(made));
                }
            }
            Lying::Nothing => node.slices.make_gpu_instance(order).map_err(failure)?,
            Lying::Other(instance) => {
                let gpu = &order.gpu;
                return Err(failure(Foreign { gpu, instance }.to_string()));
            }
        }
        self.lock = Some(node.slices.lock(&order.gpu));
        Ok(None)
    }

    fn unlock(&mut self, node: &mut GpuNode) {
        if let Some(lock) = self.lock.take() {
            node.slices.unlock(lock);
        }
    }
}

impl Removing {
    pub(super) fn new(removal: RemovalId, fence: Fence, slices: Vec<PlacedSlice>) -> Self {
        Self {
            removal,
            fence,
            todo: slices.into(),
            failed: None,
            lock: None,
        }
    }

    /// The GPU that is next.
    pub(super) fn gpu(&self) -> Option<&str> {
        self.todo.front().map(|slice| slice.gpu.as_str())
    }

    /// Half a slice; what the machine is told, once there is nothing more to do. The lock is free, or its own.
    pub(super) fn step(&mut self, node: &mut GpuNode, mishap: Option<Mishap>) -> Option<Input> {
        let Some(slice) = self.todo.front().cloned() else {
            let result = self.failed.take().map_or(Ok(()), Err);
            return Some(Input::SlicesRemoved(self.removal, result));
        };
        let is_gone = if mishap == Some(Mishap::Refused) {
            Err(failure("NVML refuses"))
        } else {
            self.remove(&slice, node)
        };
        match is_gone {
            Ok(false) => return None,
            Ok(true) => {}
            Err(failure) => {
                self.failed.get_or_insert(failure);
            }
        }
        if let Some(lock) = self.lock.take() {
            node.slices.unlock(lock);
        }
        self.todo.pop_front();
        None
    }

    /// Whether it is gone.
    fn remove(&mut self, slice: &PlacedSlice, node: &mut GpuNode) -> Result<bool, SliceFailure> {
        if self.lock.is_none() {
            if !Record::lets_remove(record(node, &self.fence), &self.fence) {
                return Ok(true);
            }
            node.slices.begin_change(&slice.gpu);
            let live = node.slices.live(&slice.gpu);
            let Some(instance) = slice.find(&live) else {
                return Ok(true);
            };
            let unit = crate::gpu_slices::unit_of(&slice.gpu, instance);
            if let Some(pod) = node.process_on(&[unit]) {
                return Err(failure(format!("in use by pod {pod}")));
            }
        }
        let is_gone = node.slices.remove_step(&slice.gpu, slice.placement);
        if !is_gone && self.lock.is_none() {
            self.lock = Some(node.slices.lock(&slice.gpu));
        }
        Ok(is_gone)
    }
}
