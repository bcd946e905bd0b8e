//! The quantised kinds as types, so that a shell is compiled once for each with its layout known.

use crate::packed::{PackedKind, QuantLayout};

/// A quantised kind.
pub(crate) trait Kind {
    /// Its planes and scales.
    const LAYOUT: QuantLayout;
}

macro_rules! kinds {
    ($($name:ident)*) => {$(
        pub(crate) struct $name;
        impl Kind for $name {
            const LAYOUT: QuantLayout = match PackedKind::$name.quant_layout() {
                Some(layout) => layout,
                None => panic!("a quantised kind"),
            };
        }
    )*};
}

kinds!(Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2K Q3K Q4K Q5K Q6K);

/// Calls `$run::<Kind>($args)` for the kind that `$kind` names at run time.
macro_rules! for_kind {
    ($kind:expr, $run:ident($($arg:expr),* $(,)?)) => {{
        use $crate::matmul::kinds;
        use $crate::packed::PackedKind;
        match $kind {
            PackedKind::F32 | PackedKind::F16 | PackedKind::BF16 => {
                unreachable!("matmul() checks the kind")
            }
            PackedKind::Q8_0 => $run::<kinds::Q8_0>($($arg),*),
            PackedKind::Q4_0 => $run::<kinds::Q4_0>($($arg),*),
            PackedKind::Q4_1 => $run::<kinds::Q4_1>($($arg),*),
            PackedKind::Q5_0 => $run::<kinds::Q5_0>($($arg),*),
            PackedKind::Q5_1 => $run::<kinds::Q5_1>($($arg),*),
            PackedKind::Q2K => $run::<kinds::Q2K>($($arg),*),
            PackedKind::Q3K => $run::<kinds::Q3K>($($arg),*),
            PackedKind::Q4K => $run::<kinds::Q4K>($($arg),*),
            PackedKind::Q5K => $run::<kinds::Q5K>($($arg),*),
            PackedKind::Q6K => $run::<kinds::Q6K>($($arg),*),
        }
    }};
}
pub(crate) use for_kind;
