//! Typed indices. An id is an index into the array of its kind in the [`crate::Program`] or
//! [`crate::Plan`] that owns it; it means nothing without that owner.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The index as a `usize`.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }

            /// The id of an array index.
            ///
            /// # Panics
            /// When the index passes `u32`: arrays are bounded far below that.
            #[must_use]
            pub fn of(index: usize) -> Self {
                Self(u32::try_from(index).expect("array index within u32"))
            }
        }
    };
}

id!(
    /// A bounded run-time size, index into `Program::dims`.
    DimId
);
id!(
    /// A tensor, index into `Program::tensors`.
    TensorId
);
id!(
    /// An operation of one phase, index into `Phase::ops`.
    OpId
);
id!(
    /// A phase, index into `Program::phases`.
    PhaseId
);
id!(
    /// An event of one phase's schedule.
    EventId
);
