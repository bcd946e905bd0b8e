//! The binary as a child process: its words, its streams, how it ended and what it used.
//!
//! `wait4` tells what the kernel counted for the child, whatever the child says of itself. Every
//! child has a time limit; one that passes it is killed and fails the test.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a child may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The binary with words that are separated by white space.
pub fn dctms(words: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dctms"));
    command.env_remove("DCTMS_MODELS").stdin(Stdio::null());
    command.args(words.split_whitespace());
    Child { command, input: None }
}

/// A child to be.
pub struct Child {
    command: Command,
    input: Option<Vec<u8>>,
}

impl Child {
    /// Adds a word as it is.
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Child {
        self.command.arg(word);
        self
    }

    /// Adds words that are separated by white space.
    pub fn args(mut self, words: &str) -> Child {
        self.command.args(words.split_whitespace());
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Child {
        self.command.env(name, value);
        self
    }

    /// Removes an environment variable.
    pub fn without_env(mut self, name: &str) -> Child {
        self.command.env_remove(name);
        self
    }

    /// Sets the working directory.
    pub fn folder(mut self, path: impl AsRef<std::path::Path>) -> Child {
        self.command.current_dir(path);
        self
    }

    /// Sets what standard input holds.
    pub fn input(mut self, bytes: impl AsRef<[u8]>) -> Child {
        self.input = Some(bytes.as_ref().to_vec());
        self
    }

    /// The words, for a message.
    pub fn words(&self) -> String {
        format!("{:?}", self.command)
    }

    /// Runs it to its end.
    #[track_caller]
    pub fn run(self) -> Output {
        self.start().end()
    }

    /// Runs it and expects an exit code and every one of these texts on standard error.
    #[track_caller]
    pub fn refused(self, code: i32, texts: &[&str]) -> Output {
        let output = self.run();
        assert_eq!(output.code(), code, "{output:?}");
        for text in texts {
            assert!(output.stderr.contains(text), "no {text:?}: {output:?}");
        }
        assert_eq!(output.stdout, "", "{output:?}");
        assert!(!output.stderr.contains("panicked"), "{output:?}");
        output
    }

    /// Runs it with `--json` and expects success and one object on one line.
    #[track_caller]
    pub fn json(self) -> Json {
        let output = self.arg("--json").run();
        assert_eq!(output.code(), 0, "{output:?}");
        let line = output.stdout.strip_suffix('\n').expect("ends with a line's end");
        assert!(!line.contains('\n'), "more than one line: {output:?}");
        let value: Value = serde_json::from_str(line).expect("parses");
        assert!(value.is_object(), "{output:?}");
        Json { value, output }
    }

    /// Starts it and hands it over while it runs.
    pub fn start(mut self) -> Running {
        if self.input.is_some() {
            self.command.stdin(Stdio::piped());
        }
        self.start_with_streams()
    }

    /// As [`Child::start`] with a standard input that stays open.
    pub fn start_with_input(mut self) -> Running {
        self.command.stdin(Stdio::piped());
        self.start_with_streams()
    }

    #[expect(clippy::zombie_processes, reason = "`Running::end` waits, to learn what it used")]
    fn start_with_streams(mut self) -> Running {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().expect("the binary starts");
        let stdin = child.stdin.take();
        let stdin = match self.input {
            Some(bytes) => {
                // A child that ends early closes the pipe: no failure of the test.
                let mut stdin = stdin.expect("piped");
                std::thread::spawn(move || stdin.write_all(&bytes));
                None
            }
            None => stdin,
        };
        let stdout = child.stdout.take().expect("piped");
        let mut stderr = child.stderr.take().expect("piped");
        let (sender, pieces) = mpsc::channel();
        let reader: Reader = Box::new(stdout);
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = stop.clone();
        std::thread::spawn(move || {
            let mut reader = reader;
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut piece) {
                if stopped.load(std::sync::atomic::Ordering::SeqCst)
                    || sender.send(piece[..count].to_vec()).is_err()
                {
                    break;
                }
            }
        });
        let errors = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stderr.read_to_end(&mut bytes);
            bytes
        });
        Running {
            id: child.id(),
            stdin,
            pieces,
            stop,
            stdout: Vec::new(),
            errors,
            start: Instant::now(),
        }
    }
}

type Reader = Box<dyn Read + Send>;

/// A child that runs.
pub struct Running {
    id: u32,
    stdin: Option<std::process::ChildStdin>,
    pieces: Receiver<Vec<u8>>,
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    stdout: Vec<u8>,
    errors: JoinHandle<Vec<u8>>,
    start: Instant,
}

impl Running {
    /// Waits until standard output has so many bytes in all.
    #[track_caller]
    pub fn wait_for_bytes(&mut self, count: usize) {
        while self.stdout.len() < count {
            let left = LIMIT.saturating_sub(self.start.elapsed());
            match self.pieces.recv_timeout(left) {
                Ok(piece) => self.stdout.extend(piece),
                Err(_) => panic!("standard output ended or stalled at {} bytes", self.stdout.len()),
            }
        }
    }

    /// Waits until standard output has so many lines in all.
    #[track_caller]
    pub fn wait_for_lines(&mut self, count: usize) {
        while self.stdout.iter().filter(|byte| **byte == b'\n').count() < count {
            self.wait_for_bytes(self.stdout.len() + 1);
        }
    }

    /// Writes to its standard input.
    pub fn write(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().expect("an open standard input");
        stdin.write_all(text.as_bytes()).expect("the child reads");
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Closes the reading end of its standard output (with the next piece that comes).
    pub fn close_output(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child was not waited for, so the id is still its own.
        let result = unsafe { libc::kill(self.id as libc::pid_t, signal) };
        assert_eq!(result, 0, "the child is there");
    }

    /// A field of `/proc/ID/status` in KiB.
    pub fn status_kib(&self, field: &str) -> u64 {
        self.status(field).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// Waits until it has a handler for a signal: before that, the signal would end it.
    pub fn wait_until_it_catches(&self, signal: i32) {
        let caught = || {
            let mask = u64::from_str_radix(&self.status("SigCgt")?, 16).ok()?;
            Some(mask >> (signal - 1) & 1 == 1)
        };
        while caught() != Some(true) {
            assert!(self.start.elapsed() < LIMIT, "no handler of signal {signal}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The first word of a field of `/proc/ID/status`.
    fn status(&self, field: &str) -> Option<String> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.id)).ok()?;
        let line = text.lines().find(|line| line.starts_with(field))?;
        Some(line.split_whitespace().nth(1)?.to_string())
    }

    /// Closes its standard input and waits for its end.
    #[track_caller]
    pub fn end(mut self) -> Output {
        drop(self.stdin.take());
        self.end_with_input_open()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn end_with_input_open(mut self) -> Output {
        let id = self.id as libc::pid_t;
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = sender.send(wait(id));
        });
        let ended = receiver.recv_timeout(LIMIT);
        let (status, usage) = ended.unwrap_or_else(|_| {
            // SAFETY: as in `signal`.
            unsafe { libc::kill(id, libc::SIGKILL) };
            panic!("the child did not end within {LIMIT:?}")
        });
        while let Ok(piece) = self.pieces.recv() {
            self.stdout.extend(piece);
        }
        Output {
            status,
            processor_time: time(usage.ru_utime) + time(usage.ru_stime),
            peak_bytes: usage.ru_maxrss as u64 * 1024,
            stdout: String::from_utf8(self.stdout).expect("standard output is UTF-8"),
            stderr: String::from_utf8_lossy(&self.errors.join().expect("was read")).into_owned(),
        }
    }
}

/// Makes a named pipe.
pub fn make_pipe(path: &std::ffi::CStr) {
    // SAFETY: the path ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0, "a named pipe");
}

fn wait(id: libc::pid_t) -> (ExitStatus, libc::rusage) {
    // SAFETY: all zero is a valid rusage; status and usage are filled by the call.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let mut status = 0;
        let waited = libc::wait4(id, &raw mut status, 0, &raw mut usage);
        assert_eq!(waited, id, "the child is ours");
        (ExitStatus::from_raw(status), usage)
    }
}

fn time(value: libc::timeval) -> Duration {
    Duration::from_secs(value.tv_sec as u64) + Duration::from_micros(value.tv_usec as u64)
}

/// What a child left.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// Its time on processors.
    pub processor_time: Duration,
    /// The most that was ever resident, as the kernel counted. A child begins as a copy of its
    /// parent, so this is never less than the test's own figure.
    pub peak_bytes: u64,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// The exit code; a signal fails the test.
    #[track_caller]
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by a signal: {self:?}"))
    }
}

/// A report, parsed.
pub struct Json {
    /// The object.
    pub value: Value,
    /// The rest.
    pub output: Output,
}

impl Json {
    /// A whole number of the report.
    #[track_caller]
    pub fn integer(&self, key: &str) -> u64 {
        self.value[key].as_u64().unwrap_or_else(|| panic!("{key}: {}", self.value))
    }
}

/// Peak of this test's process, which every child inherits, bytes.
pub fn own_peak_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) * 1024
}
