//! Plans, verifies and generates: the engine as a library.
//!
//! `cargo run --release -p dctms-engine --example generate -- MODEL.gguf "Why is the sky blue?"`

use std::io::Write;
use std::path::Path;

use dctms_engine::generation::Control;
use dctms_engine::planning::{plan, resolve_bounds};
use dctms_engine::session::{Generator, library_settings};
use dctms_engine::{EngineError, Model};

/// Heap that this program declares beside the arena, bytes.
const HEAP_BYTES: u64 = 64 << 20;

fn main() -> Result<(), EngineError> {
    let words: Vec<String> = std::env::args().collect();
    let [_, path, prompt] = words.as_slice() else { panic!("usage: generate MODEL PROMPT") };
    let model = Model::open(Path::new(path))?;
    let settings = library_settings(HEAP_BYTES)?;
    let bounds = resolve_bounds(&model, &settings, Some(512))?;
    let planned = plan(&model, &settings, &bounds)?;
    eprintln!("at most {} bytes of memory", planned.plan.envelope.total);
    let mut generator = Generator::start(&model, &planned)?;
    generator.answer(prompt, 128, &mut |piece| {
        print!("{piece}");
        match std::io::stdout().flush() {
            Ok(()) => Control::Continue,
            Err(_) => Control::Stop,
        }
    })?;
    println!();
    Ok(())
}
