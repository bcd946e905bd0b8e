//! Programs that this one starts and must not leave behind: they die with it, they are ended with
//! whatever they started themselves, and writing to them never blocks.
//!
//! Believes: `prctl`, `kill`, and that a pipe can be opened again through `/proc/self/fd`. Must
//! not know: what the programs are for.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command};

/// Puts the program into a process group of its own, and has the kernel kill it when the thread
/// that starts it is gone, however that came about.
pub fn bind_to_parent(command: &mut Command) -> &mut Command {
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let parent = std::process::id();
        // SAFETY: between fork and exec only two system calls are made; nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                let told = libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
                // A parent that was gone before the call will not be told of.
                match told == 0 && libc::getppid() as u32 == parent {
                    true => Ok(()),
                    false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
                }
            });
        }
    }
    command
}

/// Kills the process group of a program that was started with [`bind_to_parent`]: itself, if it
/// is there, and what it started. That nobody is left is no failure.
pub fn kill_group(pid: u32) {
    if let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 1) {
        // SAFETY: sends a signal, touches no memory.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
    }
}

/// Kills one process. That it is gone is no failure.
pub fn kill_process(pid: u32) {
    if let Some(pid) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 1) {
        // SAFETY: sends a signal, touches no memory.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

/// The pipe to a program's input as a file that takes what there is room for at once, and else
/// says `WouldBlock`. The pipe ends when this file and `input` are both dropped.
///
/// # Errors
/// No `/proc`.
pub fn unblocking(input: &ChildStdin) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", input.as_raw_fd());
    File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    #[test]
    fn a_group_ends_with_what_it_started() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 60 & echo $!; wait"]).stdout(Stdio::piped());
        let mut child = bind_to_parent(&mut command).spawn().unwrap();
        let mut line = String::new();
        let mut output = io::BufReader::new(child.stdout.take().unwrap());
        io::BufRead::read_line(&mut output, &mut line).unwrap();
        kill_group(child.id());
        child.wait().unwrap();
        let status = format!("/proc/{}/status", line.trim());
        let start = Instant::now();
        let lives = || {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            !text.is_empty() && !text.contains("State:\tZ")
        };
        while lives() {
            assert!(start.elapsed() < Duration::from_secs(5), "{line} lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
        kill_group(0);
        kill_process(1);
    }

    #[test]
    fn a_program_dies_with_the_thread_that_started_it() {
        let mut child =
            std::thread::spawn(|| bind_to_parent(Command::new("sleep").arg("60")).spawn().unwrap())
                .join()
                .unwrap();
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < Duration::from_secs(5), "it lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_full_pipe_says_so() {
        let mut command = Command::new("sleep");
        command.arg("60").stdin(Stdio::piped());
        let mut child = bind_to_parent(&mut command).spawn().unwrap();
        let mut input = unblocking(child.stdin.as_ref().unwrap()).unwrap();
        let full = input.write_all(&vec![0; 4 << 20]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        kill_group(child.id());
        child.wait().unwrap();
    }
}
