//! Dense numbers for what the state knows by name. A number that was given back is used again, the lowest
//! first, so the numbers of a state depend on its history: nothing that is decided may depend on them.

use std::marker::PhantomData;

macro_rules! ids {
    ($(#[$documentation:meta] $name:ident),* $(,)?) => {$(
        #[$documentation]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(super) struct $name(u32);

        impl From<u32> for $name {
            fn from(number: u32) -> Self {
                Self(number)
            }
        }

        impl From<$name> for usize {
            fn from(id: $name) -> usize {
                id.0 as usize
            }
        }
    )*};
}

ids! {
    /// A Team that is known, by its object or because a gang of it waits.
    TeamId,
    /// A gang that was told as waiting.
    GangId,
    /// Gangs of one Team that ask for the same.
    ClassId,
    /// A demand, whoever has it.
    ShapeId,
    /// Shapes that wait for much the same nodes of one Flavor.
    GroupId,
}

/// Values under dense numbers.
#[derive(Clone, Debug)]
pub(super) struct Slab<I, T> {
    slots: Vec<Option<T>>,
    vacant: Vec<u32>,
    id: PhantomData<I>,
}

impl<I, T> Default for Slab<I, T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            vacant: Vec::new(),
            id: PhantomData,
        }
    }
}

impl<I: Copy + From<u32> + Into<usize>, T> Slab<I, T> {
    pub(super) fn insert(&mut self, value: T) -> I {
        if let Some(number) = self.vacant.pop() {
            self.slots[number as usize] = Some(value);
            return I::from(number);
        }
        let number = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push(Some(value));
        I::from(number)
    }

    pub(super) fn remove(&mut self, id: I) -> Option<T> {
        let at: usize = id.into();
        let value = self.slots.get_mut(at)?.take()?;
        self.vacant.push(u32::try_from(at).unwrap_or(u32::MAX));
        Some(value)
    }

    pub(super) fn get(&self, id: I) -> Option<&T> {
        self.slots.get(id.into())?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.slots.get_mut(id.into())?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        (0..).zip(&self.slots).filter_map(|(number, slot)| {
            let value = slot.as_ref()?;
            Some((I::from(number), value))
        })
    }
}
