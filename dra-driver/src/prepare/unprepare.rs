//! Giving a claim back.

use muster_api::Reason;

use super::{
    claim::ClaimRef,
    disk::{Disk, Record, RecordState},
    effect::{Answer, CallId, Effect, InUse, Refusal, Write},
    machine::Machine,
    mutation::Mutation,
    task::{After, Decision},
};

impl Machine {
    /// Refused while something uses the hardware (rule 6). What is unknown is given back already.
    pub(super) fn decide_unprepare(
        &mut self,
        call: Option<CallId>,
        claim: &ClaimRef,
        disk: &Disk,
        in_use: InUse,
        effects: &mut Vec<Effect>,
    ) -> Decision {
        let refused = |reason, message: String| {
            let answer = Answer::Refused(Refusal { reason, message });
            call.map_or(After::Done, |call| After::Answer(call, answer))
        };
        let Some(record) = disk.records.get(&claim.uid) else {
            if disk.acknowledged.is_none() {
                self.gather(effects);
                let message =
                    format!("claim {claim}: the driver's records were lost and are being rebuilt");
                return (Vec::new(), refused(None, message));
            }
            let after = call.map_or(After::Done, |call| After::Answer(call, Answer::Unprepared));
            return (vec![Write::RemoveCdi(claim.uid.clone())], after);
        };
        let done = After::Changed(call.map(|call| (call, Answer::Unprepared)));
        if !record.holds() {
            return (vec![Write::RemoveRecord(claim.uid.clone())], done);
        }
        match in_use {
            InUse::No => {}
            InUse::Yes(_) | InUse::Unknown(_) if self.broken(Mutation::UnprepareWithProcess) => {}
            InUse::Yes(who) => {
                let message = format!("claim {claim} is still in use: {who}");
                return (Vec::new(), refused(Some(Reason::DeviceHeld), message));
            }
            InUse::Unknown(cause) => {
                let message =
                    format!("claim {claim}: whether it is still in use cannot be told: {cause}");
                return (Vec::new(), refused(Some(Reason::DeviceHeld), message));
            }
        }
        let leaving = Record {
            state: RecordState::Unpreparing,
            ..record.clone()
        };
        let writes = vec![
            Write::PutRecord(leaving),
            Write::RemoveCdi(claim.uid.clone()),
            Write::RemoveRecord(claim.uid.clone()),
        ];
        (writes, done)
    }
}
