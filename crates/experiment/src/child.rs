//! A system as a process that stays up, asked one request after another.
//!
//! Two ways of asking: lines of JSON on its standard streams, and HTTP with the chat interface
//! that llama.cpp's server has. What is asked and how time is taken is the same for both.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

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
    /// The system said so.
    Refused(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::TimedOut => f.write_str("no answer in time"),
            Failure::Ended { how, said } => write!(f, "{how}: {said}"),
            Failure::Refused(what) => f.write_str(what),
        }
    }
}

/// A running system. It is killed when dropped.
pub struct System {
    child: Child,
    link: Link,
    log: PathBuf,
}

enum Link {
    Lines { answers: Receiver<String> },
    Http { port: u16 },
}

/// How long a server may take until it listens, models being loaded.
const START_LIMIT: Duration = Duration::from_secs(300);

impl System {
    /// Starts a system, inside of a control group where one is given.
    ///
    /// # Errors
    /// A program that cannot be started, a server that never listens.
    pub fn start(
        command: &SystemCommand,
        group: Option<&Path>,
        log: &Path,
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
        let mut child = process.spawn().map_err(fault)?;
        let link = match command.asked {
            Asked::Lines => {
                let (sender, answers) = channel();
                let output = child.stdout.take().expect("its output is a pipe");
                std::thread::spawn(move || {
                    for line in BufReader::new(output).lines().map_while(Result::ok) {
                        if sender.send(line).is_err() {
                            return;
                        }
                    }
                });
                Link::Lines { answers }
            }
            Asked::Http { port } => Link::Http { port },
        };
        let mut system = System { child, link, log: log.to_path_buf() };
        if let Link::Http { port } = system.link {
            system.await_server(port)?;
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
        match &self.link {
            Link::Lines { .. } => self.ask_line(prompt, tokens, limit),
            Link::Http { port } => {
                let body = json!({
                    "messages": [{ "role": "user", "content": prompt }],
                    "max_tokens": tokens,
                    "temperature": 0,
                    "cache_prompt": false,
                });
                match http(*port, "POST", "/v1/chat/completions", &body.to_string(), limit) {
                    Ok((200, body)) => chat_reply(&body),
                    Ok((status, body)) => Err(Failure::Refused(format!("{status}: {body}"))),
                    Err(error) => Err(self.gone().unwrap_or(match error.kind() {
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                            Failure::TimedOut
                        }
                        _ => Failure::Refused(error.to_string()),
                    })),
                }
            }
        }
    }

    fn ask_line(&mut self, prompt: &str, tokens: u64, limit: Duration) -> Result<Reply, Failure> {
        let request = json!({ "prompt": prompt, "max_tokens": tokens });
        let written =
            self.child.stdin.as_mut().is_some_and(|input| {
                writeln!(input, "{request}").and_then(|()| input.flush()).is_ok()
            });
        if !written {
            return Err(self.ended());
        }
        let start = Instant::now();
        loop {
            let Link::Lines { answers } = &self.link else { unreachable!("asked by lines") };
            match answers.recv_timeout(limit.saturating_sub(start.elapsed())) {
                // What is no answer (a note that it is ready, say) is passed over.
                Ok(line) => match line_reply(&line) {
                    Some(answer) => return answer,
                    None => continue,
                },
                Err(RecvTimeoutError::Timeout) => return Err(Failure::TimedOut),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    fn await_server(&mut self, port: u16) -> Result<(), Failure> {
        let start = Instant::now();
        while start.elapsed() < START_LIMIT {
            if let Some(gone) = self.gone() {
                return Err(gone);
            }
            let answer = http(port, "GET", "/health", "", Duration::from_secs(2));
            if matches!(answer, Ok((200, _))) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(Failure::TimedOut)
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
        Failure::Refused("its output has ended, and it lives on".to_string())
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The words that start a program inside of a group: a shell enters it, then becomes the program.
#[must_use]
pub fn entering(words: &[String], group: Option<&Path>) -> Vec<String> {
    let Some(group) = group else { return words.to_vec() };
    let script = "echo $$ > \"$0/cgroup.procs\" && exec \"$@\"";
    let shell = ["/bin/sh", "-c", script].map(str::to_string);
    shell.into_iter().chain([group.display().to_string()]).chain(words.to_vec()).collect()
}

/// The last lines of a log.
fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

/// The answer in a line; `None` for a line that is none.
fn line_reply(line: &str) -> Option<Result<Reply, Failure>> {
    let value: Value = serde_json::from_str(line).ok()?;
    if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
        let text = error.as_str().or_else(|| error["message"].as_str());
        let text = text.map_or_else(|| error.to_string(), str::to_string);
        return Some(Err(Failure::Refused(text)));
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

/// One request; gives status and body.
fn http(
    port: u16,
    method: &str,
    path: &str,
    body: &str,
    limit: Duration,
) -> std::io::Result<(u16, String)> {
    let limit = limit.max(Duration::from_millis(1));
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_nodelay(true)?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let bad = || std::io::Error::other("no answer of HTTP");
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(bad)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(bad)?;
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Ok((status, if is_chunked { unchunked(body) } else { body.to_string() }))
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
            let refused = Some(Err(Failure::Refused("too long".to_string())));
            assert_eq!(line_reply(line), refused);
        }
        let line = r#"{"text": "x", "prompt_tokens": 3, "decode_tokens": 2, "ttft_ms": 0.5}"#;
        let reply = line_reply(line).unwrap().unwrap();
        assert_eq!((reply.prompt_tokens, reply.output_tokens, reply.first_token_ms), (3, 2, 0.5));
    }

    #[test]
    fn chunked_bodies_are_put_together() {
        assert_eq!(unchunked("4\r\nWiki\r\n5\r\npedia\r\n0\r\n\r\n"), "Wikipedia");
        assert_eq!(unchunked(""), "");
    }
}
