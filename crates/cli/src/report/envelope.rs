//! The envelope as two stacked bars: the process in the machine, and the process by its terms.
//!
//! ```text
//!   machine │▇▇|                                   │   M_max of the machine's limit
//!            /   ‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾ \
//!   M_max   │▇▇▇ weights ▇▇▇▇▇▇▇│▇ kv ▇▇▇│▇│▇▇▇▇▇▇▇▇│
//! ```
//!
//! Lengths are drawn, so they are floating point; every figure beside them is exact.

use std::fmt::Write as _;

use dctms_ir::plan::Envelope;

use crate::show::mebibytes;
use crate::table::envelope_rows;

/// The colour of a term, as the page's style names it.
#[must_use]
pub fn colour(name: &str) -> &'static str {
    match name {
        "weights (as packed)" => "var(--g-weights)",
        "keys and values" => "var(--g-kv)",
        "persistent" => "var(--g-persistent)",
        "intermediate" => "var(--g-attention)",
        _ => "var(--g-runtime)",
    }
}

/// The drawing.
#[must_use]
pub fn bars(envelope: &Envelope) -> String {
    let widest = envelope.hardware.max(envelope.total).max(1);
    let percent = |bytes: u64| bytes as f64 / widest as f64 * 100.0;
    let (used, limit) = (percent(envelope.total), percent(envelope.hardware));
    let (total, hardware) = (mebibytes(envelope.total), mebibytes(envelope.hardware));
    let (fill, word) = match envelope.fits() {
        true => ("var(--accent)", "machine"),
        false => ("var(--bad)", "limit"),
    };
    let mut out = format!(
        "<div class=\"bars\" role=\"img\" aria-label=\"M_max {total} MiB of {hardware} MiB, by \
         terms\">\n\
         <p class=\"ends\"><span>M_max {total} MiB</span><span>{word} {hardware} MiB</span></p>\n\
         <svg viewBox=\"0 0 100 44\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\n\
         <rect x=\"0\" y=\"0\" width=\"{limit:.3}\" height=\"22\" fill=\"var(--panel)\"/>\n\
         <rect x=\"0\" y=\"0\" width=\"{:.3}\" height=\"22\" fill=\"{fill}\"/>\n\
         <rect x=\"{:.3}\" y=\"0\" width=\"0.2\" height=\"22\" fill=\"var(--ink)\"/>\n\
         <path d=\"M0 22 L{used:.3} 22 L100 44 L0 44 Z\" fill=\"{fill}\" opacity=\"0.16\"/>\n\
         </svg>\n",
        used.max(0.15),
        (limit - 0.2).max(0.0),
    );
    out.push_str("<div class=\"parts\">\n");
    for (name, _, bytes) in envelope_rows(envelope).into_iter().filter(|row| row.1 == 0) {
        part(&mut out, name, bytes, envelope.total);
    }
    out.push_str("</div>\n</div>\n");
    out
}

fn part(out: &mut String, name: &str, bytes: u64, total: u64) {
    let width = bytes as f64 / total.max(1) as f64 * 100.0;
    let (size, fill) = (mebibytes(bytes), colour(name));
    let short = name.split(" (").next().unwrap_or(name);
    let _ = writeln!(
        out,
        "<div style=\"width:{width:.3}%;background:{fill}\" title=\"{name}: {size} MiB\">\
         <span>{short}</span><span>{size} MiB</span></div>"
    );
}
