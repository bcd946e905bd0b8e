//! A system as a process that stays up, asked one request after another.
//!
//! Two ways of asking: lines of JSON on its standard streams, and HTTP with the chat interface
//! that llama.cpp's server has. What is asked and how time is taken is the same for both.
//!
//! Systems are strangers: one that says nothing, reads nothing, answers twice or floods its output
//! is cut off in the time that a call may take, and is killed with whatever it started.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use dctms_system::child::{bind_to_parent, kill_group, unblocking};
use dctms_system::interrupt::stop_requested;
use serde_json::{Value, json};

/// How a system is started and asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemCommand {
    /// Its name in reports.
    pub name: String,
    /// Program and arguments.
    pub words: Vec<String>,
    /// How it is asked.
    pub asked: Asked,
}

/// How a system is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// By lines of JSON.
    Lines,
    /// By HTTP on a port of this machine.
    Http {
        /// The port.
        port: u16,
    },
}

impl Asked {
    /// Makes sure that nobody else listens where the system will: a stranger's answers would be
    /// taken for its own.
    ///
    /// # Errors
    /// `Refused` with the port.
    pub fn require_free(self) -> Result<(), Failure> {
        match self {
            Asked::Lines => Ok(()),
            Asked::Http { port } => match TcpListener::bind(("127.0.0.1", port)) {
                Ok(_) => Ok(()),
                Err(error) => Err(Failure::Refused(format!("port {port}: {error}"))),
            },
        }
    }
}

/// An answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The text.
    pub text: String,
    /// Tokens of the prompt, template included.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Milliseconds until the first token; 0 where the system does not say.
    pub first_token_ms: f64,
    /// The bound that the system states of its memory, bytes.
    pub m_max_bytes: Option<u64>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Not in time.
    TimedOut,
    /// The process is gone.
    Ended {
        /// Its exit code or signal.
        how: String,
        /// The end of what it said on standard error.
        said: String,
    },
    /// It cannot be asked at all.
    Refused(String),
    /// The system answered that it does not take this request; it may take another.
    Declined(String),
    /// It is not the system that it was.
    Changed(String),
    /// The experiment was asked to stop.
    Stopped,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::TimedOut => f.write_str("no answer in time"),
            Failure::Ended { how, said } => write!(f, "{how}: {said}"),
            Failure::Refused(what) | Failure::Declined(what) | Failure::Changed(what) => {
                f.write_str(what)
            }
            Failure::Stopped => f.write_str("stopped"),
        }
    }
}

/// A running system. It is killed when dropped, with what it started.
pub struct System {
    child: Child,
    link: Link,
    log: PathBuf,
}

enum Link {
    Lines { input: File, answers: Receiver<String> },
    Http { port: u16 },
}

/// Longest line of an answer, bytes; lines that nobody has asked for are kept up to their number.
const LINE_BYTES_MAX: u64 = 16 << 20;
const LINES_MAX: usize = 256;
/// Longest body of an answer, bytes.
const BODY_BYTES_MAX: usize = 64 << 20;

impl System {
    /// Starts a system, inside of a control group where one is given. A server may take `limit`
    /// until it listens.
    ///
    /// # Errors
    /// A program that cannot be started, a server that does not listen in time.
    pub fn start(
        command: &SystemCommand,
        group: Option<&Path>,
        log: &Path,
        limit: Duration,
    ) -> Result<System, Failure> {
        let failed = |what: String| Failure::Refused(what);
        let fault = |error: std::io::Error| failed(format!("{}: {error}", command.words[0]));
        let words = entering(&command.words, group);
        let stderr = File::create(log).map_err(fault)?;
        let mut process = Command::new(&words[0]);
        process.args(&words[1..]).stderr(Stdio::from(stderr)).stdin(Stdio::piped());
        match command.asked {
            Asked::Lines => process.stdout(Stdio::piped()),
            Asked::Http { .. } => process.stdout(Stdio::null()),
        };
        let mut child = bind_to_parent(&mut process).spawn().map_err(fault)?;
        let link = match command.asked {
            Asked::Lines => lines_of(&mut child).inspect_err(|_| end(&mut child)).map_err(fault)?,
            Asked::Http { port } => Link::Http { port },
        };
        let mut system = System { child, link, log: log.to_path_buf() };
        if let Link::Http { port } = system.link {
            system.await_server(port, limit)?;
        }
        Ok(system)
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks for at most `tokens` tokens after a prompt.
    ///
    /// # Errors
    /// No answer within `limit`, or none at all.
    pub fn ask(&mut self, prompt: &str, tokens: u64, limit: Duration) -> Result<Reply, Failure> {
        let patience = Patience::new(limit);
        let port = match &self.link {
            Link::Lines { .. } => return self.ask_line(prompt, tokens, &patience),
            Link::Http { port } => *port,
        };
        let body = json!({
            "messages": [{ "role": "user", "content": prompt }],
            "max_tokens": tokens,
            "temperature": 0,
            "cache_prompt": false,
        });
        match http(port, ("POST", "/v1/chat/completions", &body.to_string()), &patience) {
            Ok((200, body)) => chat_reply(&body),
            Ok((status @ 400..500, body)) => Err(Failure::Declined(format!("{status}: {body}"))),
            Ok((status, body)) => Err(Failure::Refused(format!("{status}: {body}"))),
            Err(failure @ (Failure::TimedOut | Failure::Stopped)) => Err(failure),
            Err(failure) => Err(self.gone().unwrap_or(failure)),
        }
    }

    fn ask_line(
        &mut self,
        prompt: &str,
        tokens: u64,
        patience: &Patience,
    ) -> Result<Reply, Failure> {
        let Link::Lines { input, answers } = &mut self.link else { unreachable!("lines") };
        loop {
            match answers.try_recv() {
                Ok(line) if line_reply(&line).is_some() => {
                    let what = "it answered before it was asked";
                    return Err(Failure::Refused(what.to_string()));
                }
                Ok(_) => {}
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(self.ended()),
            }
        }
        let request = json!({ "prompt": prompt, "max_tokens": tokens });
        match send(input, format!("{request}\n").as_bytes(), patience) {
            Ok(()) => {}
            Err(Failure::Refused(_)) => return Err(self.ended()),
            Err(failure) => return Err(failure),
        }
        loop {
            let Link::Lines { answers, .. } = &self.link else { unreachable!("lines") };
            match answers.recv_timeout(patience.moment()?) {
                // What is no answer (a note that it is ready, say) is passed over.
                Ok(line) => match line_reply(&line) {
                    Some(answer) => return answer,
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    fn await_server(&mut self, port: u16, limit: Duration) -> Result<(), Failure> {
        let patience = Patience::new(limit);
        loop {
            let answer = http(port, ("GET", "/health", ""), &Patience::new(HEALTH_LIMIT));
            if let Some(gone) = self.gone() {
                return Err(gone);
            }
            if matches!(answer, Ok((200, _))) {
                return Ok(());
            }
            std::thread::sleep(patience.moment()?);
        }
    }

    /// How it ended, if it has.
    fn gone(&mut self) -> Option<Failure> {
        let status = self.child.try_wait().ok()??;
        Some(Failure::Ended { how: status.to_string(), said: tail(&self.log) })
    }

    /// As `gone`, of a process whose output has ended.
    fn ended(&mut self) -> Failure {
        for _ in 0..50 {
            if let Some(gone) = self.gone() {
                return gone;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Failure::Refused("its output has ended or is no lines, and it lives on".to_string())
    }
}

impl Drop for System {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Ends a program with what it started.
pub fn end(child: &mut Child) {
    kill_group(child.id());
    let _ = child.kill();
    let _ = child.wait();
}

/// How long to wait for something.
struct Patience {
    start: Instant,
    limit: Duration,
}

/// How long a server may take to say that it is there.
const HEALTH_LIMIT: Duration = Duration::from_secs(2);

impl Patience {
    fn new(limit: Duration) -> Patience {
        Patience { start: Instant::now(), limit }
    }

    /// The time until it is right to look again.
    fn moment(&self) -> Result<Duration, Failure> {
        if stop_requested() {
            return Err(Failure::Stopped);
        }
        match self.limit.saturating_sub(self.start.elapsed()) {
            Duration::ZERO => Err(Failure::TimedOut),
            left => Ok(left.min(Duration::from_millis(100))),
        }
    }
}

/// The streams of a program that is asked by lines.
fn lines_of(child: &mut Child) -> std::io::Result<Link> {
    let (sender, answers) = sync_channel(LINES_MAX);
    let output = child.stdout.take().expect("its output is a pipe");
    let input = unblocking(&child.stdin.take().expect("its input is a pipe"))?;
    std::thread::spawn(move || read_lines(BufReader::new(output), &sender));
    Ok(Link::Lines { input, answers })
}

/// Hands lines on until there are none, or one is too long to be one.
fn read_lines(mut output: impl BufRead, sender: &SyncSender<String>) {
    loop {
        let mut line = Vec::new();
        let read = (&mut output).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        let whole = read.is_ok_and(|count| count > 0 && (count as u64) < LINE_BYTES_MAX);
        if !whole || sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
    }
}

/// Writes a request to a pipe that may be full; `Refused` when nobody is at its other end.
fn send(input: &mut File, mut bytes: &[u8], patience: &Patience) -> Result<(), Failure> {
    while !bytes.is_empty() {
        match input.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(patience.moment()?.min(Duration::from_millis(5)));
            }
            Err(error) => return Err(Failure::Refused(error.to_string())),
        }
    }
    Ok(())
}

/// The words that start a program inside of a group: a shell enters it, then becomes the program.
#[must_use]
pub fn entering(words: &[String], group: Option<&Path>) -> Vec<String> {
    let Some(group) = group else { return words.to_vec() };
    let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
    let shell = ["/bin/sh", "-c", script].map(str::to_string);
    shell.into_iter().chain([group.display().to_string()]).chain(words.to_vec()).collect()
}

/// Makes sure that a program is there: where its name says, or in a folder of `PATH`.
///
/// # Errors
/// Its name, for people.
pub fn require_program(name: &str) -> Result<(), String> {
    let is_program = |path: &Path| {
        let facts = std::fs::metadata(path);
        facts.is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
    };
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let is_there = match name.contains('/') {
        true => is_program(Path::new(name)),
        false => std::env::split_paths(&folders).any(|folder| is_program(&folder.join(name))),
    };
    is_there.then_some(()).ok_or_else(|| format!("{name}: no such program"))
}

/// What a program says to `--help`, as far as it says it within some seconds.
#[must_use]
pub fn help_of(program: &Path) -> String {
    let heard = || -> std::io::Result<Vec<u8>> {
        let (mut output, input) = std::io::pipe()?;
        let mut command = Command::new(program);
        command.arg("--help").stdin(Stdio::null());
        command.stdout(input.try_clone()?).stderr(input);
        let mut child = bind_to_parent(&mut command).spawn()?;
        // With the command its ends of the pipe go, so that the program's is the last one.
        drop(command);
        let (sender, said) = sync_channel(1);
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = output.read_to_end(&mut text);
            let _ = sender.send(text);
        });
        let text = said.recv_timeout(HELP_LIMIT).unwrap_or_default();
        end(&mut child);
        Ok(text)
    };
    String::from_utf8_lossy(&heard().unwrap_or_default()).into_owned()
}

/// How long that may take.
const HELP_LIMIT: Duration = Duration::from_secs(10);

/// The last lines of a log.
#[must_use]
pub fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

impl Reply {
    /// Refuses an answer that says of itself what cannot be: figures would be made of it.
    ///
    /// # Errors
    /// `Refused`, with what it says.
    pub fn require_possible(&self, latency_ms: f64, max_output: u64) -> Result<(), Failure> {
        let (tokens, first_ms) = (self.output_tokens, self.first_token_ms);
        if tokens > max_output {
            return Err(Failure::Refused(format!(
                "it says that its answer has {tokens} tokens, of {max_output} at most"
            )));
        }
        if !(0.0..=latency_ms).contains(&first_ms) {
            return Err(Failure::Refused(format!(
                "it says that its first token came after {first_ms:e} ms of a call of \
                 {latency_ms:.3} ms"
            )));
        }
        Ok(())
    }
}

/// The answer in a line; `None` for a line that is none.
fn line_reply(line: &str) -> Option<Result<Reply, Failure>> {
    let value: Value = serde_json::from_str(line).ok()?;
    if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
        let text = error.as_str().or_else(|| error["message"].as_str());
        let text = text.map_or_else(|| error.to_string(), str::to_string);
        return Some(Err(Failure::Declined(text)));
    }
    let number = |name: &str| value.get(name)?.as_u64();
    Some(Ok(Reply {
        text: value.get("text")?.as_str()?.to_string(),
        prompt_tokens: number("prompt_tokens").unwrap_or(0),
        output_tokens: number("decode_tokens").unwrap_or(0),
        first_token_ms: value["ttft_ms"].as_f64().unwrap_or(0.0),
        m_max_bytes: number("m_max_bytes"),
    }))
}

/// The answer in the body of a chat completion.
fn chat_reply(body: &str) -> Result<Reply, Failure> {
    let bad = || Failure::Refused(format!("no chat completion: {body}"));
    let value: Value = serde_json::from_str(body).map_err(|_| bad())?;
    let message = &value["choices"][0]["message"];
    Ok(Reply {
        text: message["content"].as_str().ok_or_else(bad)?.to_string(),
        prompt_tokens: value["usage"]["prompt_tokens"].as_u64().unwrap_or(0),
        output_tokens: value["usage"]["completion_tokens"].as_u64().unwrap_or(0),
        first_token_ms: value["timings"]["prompt_ms"].as_f64().unwrap_or(0.0),
        m_max_bytes: None,
    })
}

/// One request (method, path, body); gives status and body.
fn http(
    port: u16,
    (method, path, body): (&str, &str, &str),
    patience: &Patience,
) -> Result<(u16, String), Failure> {
    let refused = |error: std::io::Error| Failure::Refused(error.to_string());
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(refused)?;
    stream.set_nodelay(true).map_err(refused)?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream
        .set_write_timeout(Some(patience.limit.max(Duration::from_millis(1))))
        .map_err(refused)?;
    stream.write_all(request.as_bytes()).map_err(refused)?;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        stream.set_read_timeout(Some(patience.moment()?)).map_err(refused)?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(refused(error)),
        }
        if is_whole(&answer) {
            break;
        }
        if answer.len() > BODY_BYTES_MAX {
            return Err(Failure::Refused("an answer without end".to_string()));
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let bad = || Failure::Refused("no answer of HTTP".to_string());
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(bad)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(bad)?;
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Ok((status, if is_chunked { unchunked(body) } else { body.to_string() }))
}

/// Whether an answer is there to the end that its head states: a server may leave its connection
/// open after it, and what that takes is no time of the answer's.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|it| it == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let body = &answer[end + 4..];
    if head.contains("transfer-encoding: chunked") {
        return body == b"0\r\n\r\n" || body.ends_with(b"\r\n0\r\n\r\n");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.and_then(|length| length.trim().parse::<usize>().ok());
    length.is_some_and(|length| body.len() >= length)
}

/// A body that came in pieces.
fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap_or(0);
        let Some(piece) = rest.get(..length).filter(|piece| !piece.is_empty()) else { break };
        whole.push_str(piece);
        body = rest.get(length + 2..).unwrap_or("");
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_answers_are_passed_over() {
        assert_eq!(line_reply("{\"ready\": true}"), None);
        assert_eq!(line_reply("loading…"), None);
        for line in [r#"{"error": "too long"}"#, r#"{"error": {"message": "too long"}}"#] {
            let refused = Some(Err(Failure::Declined("too long".to_string())));
            assert_eq!(line_reply(line), refused);
        }
        let line = r#"{"text": "x", "prompt_tokens": 3, "decode_tokens": 2, "ttft_ms": 0.5}"#;
        let reply = line_reply(line).unwrap().unwrap();
        assert_eq!((reply.prompt_tokens, reply.output_tokens, reply.first_token_ms), (3, 2, 0.5));
    }

    #[test]
    fn an_answer_that_cannot_be_is_refused() {
        let reply = |tokens: u64, first_token_ms: f64| Reply {
            text: String::new(),
            prompt_tokens: 1,
            output_tokens: tokens,
            first_token_ms,
            m_max_bytes: None,
        };
        assert_eq!(reply(8, 0.0).require_possible(5.0, 8), Ok(()));
        assert_eq!(reply(0, 5.0).require_possible(5.0, 8), Ok(()));
        for (tokens, first_ms) in [(9, 1.0), (u64::MAX, 1.0), (1, -1e9), (1, 1e308), (1, 5.1)] {
            let refused = reply(tokens, first_ms).require_possible(5.0, 8);
            assert!(matches!(refused, Err(Failure::Refused(_))), "{tokens}, {first_ms}");
        }
    }

    #[test]
    fn programs_are_looked_for_before_they_are_needed() {
        assert_eq!(require_program("sh"), Ok(()));
        assert_eq!(require_program("/bin/sh"), Ok(()));
        for absent in ["/no/such/program", "no-such-program", "/etc/passwd", "/bin"] {
            assert!(require_program(absent).unwrap_err().contains(absent));
        }
        assert!(help_of(Path::new("cat")).contains("cat"));
        assert_eq!(help_of(Path::new("/no/such/program")), "");
    }

    #[test]
    fn an_answer_ends_where_its_head_says() {
        let whole = [
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        ];
        for text in whole {
            assert!(is_whole(text.as_bytes()), "{text}");
            assert!((0..text.len()).all(|end| !is_whole(&text.as_bytes()[..end])), "{text}");
        }
        assert!(!is_whole(b"HTTP/1.1 200 OK\r\n\r\nuntil the connection's end"));
    }

    #[test]
    fn chunked_bodies_are_put_together() {
        assert_eq!(unchunked("4\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\n"), "Wikipedia");
        assert_eq!(unchunked(""), "");
    }
}
