//! The command line: one file a command, exit codes by class, and the process itself.
//!
//! Allocator, latch and process limits live here: as a library the engine's envelope is arena
//! plus declared heap. The main thread only joins; everything runs on the control thread, whose
//! stack is fixed, and which is lane 0.

mod advice;
mod args;
mod choice;
mod commands;
mod costs;
mod failure;
mod family;
mod machine;
mod modes;
mod process;
mod profile;
mod report;
mod room;
mod schedule;
mod show;
mod sight;
mod streams;
mod table;
mod together;
mod variants;

use dctms_system::heap::{BoundedHeap, HeapConfig};
use dctms_system::output::ignore_broken_pipe_signal;
use dctms_system::stack::run_on_control_thread;

/// The only allocator of the process.
#[global_allocator]
static HEAP: BoundedHeap = BoundedHeap::new(HeapConfig {
    boot_limit_bytes: process::BOOT_HEAP_BYTES,
    run_reserve_bytes: process::HEAP_RESERVE_BYTES,
    exit_code: 3,
});

fn main() -> std::process::ExitCode {
    ignore_broken_pipe_signal();
    let code = run_on_control_thread(process::CONTROL_STACK_BYTES, || {
        let code = match commands::dispatch() {
            Ok(()) => 0,
            Err(failure) => failure.report(),
        };
        // Nothing is worth tearing down; and a sealed process need not unmap piece by piece.
        std::process::exit(i32::from(code))
    });
    match code {
        Ok(code) => code,
        Err(error) => {
            commands::stream::note(format_args!("dctms: {error}\n"));
            std::process::ExitCode::from(1)
        }
    }
}
