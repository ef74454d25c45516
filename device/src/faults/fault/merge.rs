//! What another instance of the driver has written of a GPU, taken in.

use std::collections::BTreeMap;

use super::{Change, Fault, GpuFaults};

/// Numbers of observations while what another instance saw is taken in.
#[derive(Clone, Copy, Debug)]
pub(in crate::faults) struct Numbers {
    /// What the own observations had reached. Marks of recoveries under way are not above it.
    pub(in crate::faults) own: u64,
    /// What those of both have reached.
    pub(in crate::faults) last: u64,
}

impl Numbers {
    /// A number for what the other saw as number `theirs`. If that could be older than a recovery that is under way here, it is taken for new.
    fn of(&mut self, theirs: u64) -> u64 {
        if theirs > self.own {
            return theirs;
        }
        self.fresh()
    }

    /// A number that neither has given to anything.
    fn fresh(&mut self) -> u64 {
        self.last = self.last.saturating_add(1);
        self.last
    }
}

impl GpuFaults {
    /// Takes in what another instance has written since both knew `base`: what it saw, and what it found mended. What was mended here stays so
    /// unless the other has seen it again.
    pub(in crate::faults) fn take_in(
        &mut self,
        base: &Self,
        theirs: &Self,
        numbers: &mut Numbers,
    ) -> Change {
        let mut change = Change::None;
        for fault in &theirs.faults {
            let before = base.same(fault);
            if before == Some(fault) {
                continue;
            }
            let is_seen_again = before.is_none_or(|before| before.newest != fault.newest);
            let mut own = self.faults.iter_mut();
            let own = own.find(|it| it.class == fault.class && it.scope == fault.scope);
            let Some(own) = own else {
                if is_seen_again {
                    let scope = self.bounded(fault.scope);
                    let newest = numbers.of(fault.newest);
                    self.faults.push(Fault {
                        scope,
                        newest,
                        ..fault.clone()
                    });
                    change = Change::New;
                }
                continue;
            };
            let is_theirs_alone = before.is_some_and(|before| before.newest == own.newest);
            own.newest = match (is_seen_again, is_theirs_alone) {
                (true, true) => numbers.of(fault.newest),
                // Seen here as well since then. Each has numbered what it saw by itself, perhaps alike: under a number of either the other would take both
                // for what it knew, and its own recovery for the end of both.
                (true, false) => numbers.fresh(),
                (false, _) => own.newest.max(fault.newest),
            };
            own.take_in(before, fault);
            change = change.max(Change::Again);
        }
        let is_mended = |own: &Fault| {
            let before = base.same(own);
            before.is_some_and(|before| before.newest == own.newest) && theirs.same(own).is_none()
        };
        if self.retain(|fault| !is_mended(fault)) > 0 {
            change = change.max(Change::Again);
        }
        if self.best_links == base.best_links {
            // A person may have said there that there are fewer.
            self.best_links = theirs.best_links;
        } else if theirs.best_links != base.best_links {
            self.note_links(theirs.best_links);
        }
        for (subject, occurrences) in &theirs.occurrences {
            let own = self.occurrences.entry(subject.clone());
            own.or_insert_with(|| occurrences.clone());
        }
        change
    }

    fn same(&self, fault: &Fault) -> Option<&Fault> {
        let mut faults = self.faults.iter();
        faults.find(|it| it.class == fault.class && it.scope == fault.scope)
    }
}

impl Fault {
    fn take_in(&mut self, before: Option<&Self>, theirs: &Self) {
        let counted = before.map_or(0, |before| before.resets);
        self.resets = if self.resets == counted {
            // Less than before, it was mended there, and is another fault by now.
            theirs.resets
        } else {
            self.resets.max(theirs.resets)
        };
        self.first_seen_unix_seconds = self
            .first_seen_unix_seconds
            .min(theirs.first_seen_unix_seconds);
        self.last_seen_unix_seconds = self
            .last_seen_unix_seconds
            .max(theirs.last_seen_unix_seconds);
        let none = BTreeMap::new();
        let before = before.map_or(&none, |before| &before.causes);
        for (cause, count) in &theirs.causes {
            // Both hear the same events: what both have counted since is the same.
            let known = self.causes.get(cause).copied().unwrap_or_default();
            let counted = before.get(cause).copied().unwrap_or_default();
            if *count > counted && *count > known {
                self.add(cause.clone(), *count - known);
            }
        }
    }
}
