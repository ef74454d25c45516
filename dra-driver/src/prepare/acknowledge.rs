//! What the node has heard: generation on disk first, then in the status.
//!
//! # A rebuild ends in the loss that it began in
//!
//! What may have been prepared is gathered without the lock: claims are listed for it, and nobody waits for the API server longer than for one
//! uncached read while he has the lock. Meanwhile another instance may rebuild and prepare, and the checkpoint may be lost once more: what was gathered
//! before that knows nothing of it. So each loss has a name on disk ([`Disk::rebuild`]). Whoever finds neither a generation nor a name writes one, and
//! gathers only then; what was gathered is recorded only while that name stands. It goes with the next loss, and with the generation that ends this
//! one; in between nothing is prepared.
//!
//! Two instances that find the same loss gather under the same name. Neither undoes what the other has begun, and whoever is first ends it for both.
//! If the name is written and its writer dies, whoever comes next gathers under it. A driver from before there were names writes none, and keeps a
//! name as it keeps all that it does not know: also while it rebuilds, prepares, and loses more. So a name counts for nothing beside a generation,
//! and for nothing once such a driver has written the file, which the file's schema tells (`store`).

use std::collections::BTreeSet;

use muster_api::{Held, NodeDevicesStatus};

use super::{
    disk::{Acknowledged, Disk, Record},
    effect::{Effect, Write},
    injected_bug::InjectedBug,
    machine::Machine,
    permit,
    task::{After, Decision, Rebuild},
    view::{Age, View},
};

impl Machine {
    /// Sees to it that what may have been prepared is gathered, under a name that is on disk.
    fn begin_rebuild(&self, disk: &Disk) -> Decision {
        // Whether that is still good is seen when it is to be recorded.
        if self.gathering.is_some() || self.queue.rebuild.is_some() {
            return (Vec::new(), After::Done);
        }
        if let Some(begun) = &disk.rebuild {
            return (Vec::new(), After::Gather(begun.clone()));
        }
        // No other turn of this instance has that number, and no other instance has its name.
        let rebuild = format!("{}/{}", self.config.instance, self.next_ticket);
        let write = Write::BeginRebuild {
            boot_id: self.config.boot_id.clone(),
            rebuild: rebuild.clone(),
        };
        (vec![write], After::Gather(rebuild))
    }

    /// Records what was found, and from when on it counts, in one turn (rule 5). Records that survived win.
    pub(super) fn decide_rebuild(
        &mut self,
        rebuild: &Rebuild,
        disk: &Disk,
        read: Option<&Result<Age, String>>,
    ) -> Decision {
        // Somebody else was faster, or more was lost since, and all of it is gathered anew.
        if disk.acknowledged.is_some() || disk.rebuild.as_ref() != Some(&rebuild.name) {
            self.request_acknowledgement(false);
            return (Vec::new(), After::Done);
        }
        if !matches!(read, Some(Ok(_))) {
            self.retry_later();
            return (Vec::new(), After::Done);
        }
        // A mark holds nothing: a call left it since, and what was prepared before wins. That call is asked again.
        let known = |uid: &String| disk.records.get(uid).is_some_and(Record::holds);
        let mut writes: Vec<Write> = rebuild
            .found
            .iter()
            .filter(|record| !known(&record.claim.uid))
            .map(|record| Write::PutRecord(record.clone()))
            .collect();
        let heard = self.heard(self.config.enforce_unless_told);
        writes.push(self.put_node(heard));
        (writes, After::Changed(None))
    }

    /// Rule 4. Also works out what is held, which changes without a new generation.
    pub(super) fn decide_acknowledge(
        &mut self,
        disk: &Disk,
        read: Option<&Result<Age, String>>,
        effects: &mut Vec<Effect>,
    ) -> Decision {
        if matches!(read, Some(Err(_))) {
            self.request_later();
            return (Vec::new(), After::Done);
        }
        let Some(acknowledged) = &disk.acknowledged else {
            return self.begin_rebuild(disk);
        };
        self.queue_unfinished(disk);
        let other =
            matches!(self.view, View::Unknown) || acknowledged.uid.as_deref() != self.view.uid();
        let older = !other && self.view.generation() < acknowledged.generation;
        let blind =
            self.broken(InjectedBug::UidBlindAck) || self.broken(InjectedBug::NoUidInStatus);
        if read.is_none() && ((other && !blind) || older) {
            self.request_acknowledgement(true);
            return (Vec::new(), After::Done);
        }
        if older || matches!(read, Some(Ok(Age::Older))) {
            // Even uncached: the object was restored from a backup, say. Nothing is promised backwards, and a status for
            // what the API server no longer has would conflict for ever. What the watch shows next leads here again.
            return (Vec::new(), After::Done);
        }
        let heard = self.heard(acknowledged.enforce);
        let held = permit::held(disk, self.view.object());
        self.taint_held(&held, heard.enforce, effects);
        if !held.is_empty() {
            self.look_at_held_later();
        }
        let status = self.status_to_write(held);
        let late = self.broken(InjectedBug::AckBeforeDisk) && status.is_some();
        let writes = if heard == *acknowledged || late {
            Vec::new()
        } else {
            vec![self.put_node(heard)]
        };
        (writes, After::Acknowledged(status))
    }

    /// What this view, put on disk, promises. A lost object does not end its enforcement.
    fn heard(&self, enforced: bool) -> Acknowledged {
        Acknowledged {
            uid: self.view.uid().map(str::to_owned),
            generation: self.view.generation(),
            enforce: self
                .view
                .object()
                .map_or(enforced, |object| object.spec.enforce),
        }
    }

    fn put_node(&self, acknowledged: Acknowledged) -> Write {
        Write::PutNode {
            boot_id: self.config.boot_id.clone(),
            acknowledged: Some(acknowledged),
        }
    }

    fn taint_held(&mut self, held: &[Held], enforce: bool, effects: &mut Vec<Effect>) {
        let devices: BTreeSet<String> = held
            .iter()
            .filter(|_| enforce)
            .flat_map(|held| held.devices.iter().cloned())
            .collect();
        self.taint(devices, effects);
    }

    fn status_to_write(&self, held: Vec<Held>) -> Option<NodeDevicesStatus> {
        let object = self.view.object()?;
        let status = NodeDevicesStatus {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            observed_generation: self.view.generation(),
            boot_id: self.config.boot_id.clone(),
            held,
            // Told by somebody else, and never written here.
            faults: object
                .status
                .as_ref()
                .and_then(|status| status.faults.clone()),
        };
        (object.status.as_ref() != Some(&status)).then_some(status)
    }
}
