//! One request a line: JSON of a closed form, read where it stands.
//!
//! ```text
//! {"prompt": "…"} or {"messages": [{"role": "user", "content": …}, …]}
//! with "images": ["a.png", …], "max_tokens": 32, "id": "any" or 7
//! content: a text, or parts {"type": "text", "text": "…"} and {"type": "image", "image": "a.png"}
//! ```
//!
//! A tree of values can take sixty times the bytes of its text, so there is none: strings lose
//! their escapes inside the line, which only shortens them, and a request is spans of it. An
//! unknown key is refused: a misspelt one would otherwise be an answer to another question. What a
//! sender calls its request is looked for before anything can be refused, so that every refusal
//! that can carry it does.
//!
//! Must not know: models, pictures, templates.

use std::fmt;

/// Bytes of the line, without escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    start: usize,
    end: usize,
}

impl Span {
    /// The text in the line that it is of.
    #[must_use]
    pub fn of(self, line: &[u8]) -> &str {
        // Taking escapes away keeps a line UTF-8, so this cannot fail.
        std::str::from_utf8(&line[self.start..self.end]).unwrap_or_default()
    }
}

/// A piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Words.
    Text(Span),
    /// A picture's path.
    Picture(Span),
}

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Instructions.
    System,
    /// The one who asks.
    User,
    /// The model.
    Assistant,
}

impl Role {
    const ALL: [Role; 3] = [Role::System, Role::User, Role::Assistant];

    /// Its name in templates.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// A message: a range of the request's pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Who.
    pub role: Role,
    /// First piece.
    pub first: usize,
    /// Behind the last piece.
    pub end: usize,
}

/// A request. Its lists are made once, and used for every line.
#[derive(Debug)]
pub struct Request {
    /// What the sender calls it: JSON as it was written.
    pub id: Option<Span>,
    /// Messages in order.
    pub turns: Vec<Turn>,
    /// Their pieces.
    pub pieces: Vec<Piece>,
    /// Pictures that stand before the last question.
    pub images: Vec<Span>,
    /// Tokens of the answer.
    pub max_tokens: Option<u64>,
    turns_max: usize,
    images_max: usize,
}

/// Why a line is no request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// Byte of the line.
    pub at: usize,
    /// What is wrong, and what is accepted.
    pub what: String,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of the request: {}", self.at, self.what)
    }
}

type Result<T> = std::result::Result<T, LineError>;

impl Request {
    /// An empty one, with room for so many messages and pictures.
    #[must_use]
    pub fn with_room(turns_max: usize, images_max: usize) -> Request {
        Request {
            id: None,
            turns: Vec::with_capacity(turns_max),
            pieces: Vec::with_capacity(pieces_max(turns_max, images_max)),
            images: Vec::with_capacity(images_max),
            max_tokens: None,
            turns_max,
            images_max,
        }
    }

    /// Heap of one with so much room, bytes.
    #[must_use]
    pub fn heap_bytes(turns_max: usize, images_max: usize) -> usize {
        turns_max * size_of::<Turn>()
            + pieces_max(turns_max, images_max) * size_of::<Piece>()
            + images_max * size_of::<Span>()
    }

    /// Pictures in all.
    #[must_use]
    pub fn pictures(&self) -> usize {
        let inside = self.pieces.iter().filter(|piece| matches!(piece, Piece::Picture(_)));
        self.images.len() + inside.count()
    }

    /// Reads a line, whose strings lose their escapes. `id` is set whatever is wrong, so that a
    /// refusal can carry it.
    ///
    /// # Errors
    /// Where the line is no request.
    pub fn read(&mut self, line: &mut [u8]) -> Result<()> {
        self.find_id(line);
        self.turns.clear();
        self.pieces.clear();
        self.images.clear();
        self.max_tokens = None;
        let mut reader = Reader { line, at: 0 };
        reader.object(|reader, key| match key.of(reader.line) {
            "prompt" => self.prompt(reader),
            "messages" => self.messages(reader),
            "images" => reader.array(|reader| {
                let image = reader.string()?;
                self.images.push(image);
                self.check_images(reader)
            }),
            "max_tokens" => {
                self.max_tokens = Some(reader.positive()?);
                Ok(())
            }
            "id" => {
                // What goes on after it, like a number with a point, is another value.
                let id = reader.scalar()?;
                if matches!(reader.peek(), Some(b',' | b'}')) {
                    self.id = Some(id);
                }
                Ok(())
            }
            other => {
                let known = "prompt, messages, images, max_tokens or id";
                Err(reader.fault(format!("{:?} is no key of a request: {known}", short(other))))
            }
        })?;
        reader.end()?;
        match self.turns.is_empty() {
            true => Err(reader.fault("neither \"prompt\" nor \"messages\"")),
            false => Ok(()),
        }
    }

    /// Sets `id` to what a line calls itself, as far as its strings and brackets can be followed:
    /// whether it is a request is another question.
    pub fn find_id(&mut self, line: &mut [u8]) {
        let mut reader = Reader { line, at: 0 };
        self.id = None;
        let mut depth = 0usize;
        while let Some(byte) = reader.peek() {
            match byte {
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.saturating_sub(1),
                b'"' => {
                    let Some(word) = reader.skip_string() else { return };
                    let is_id = &reader.line[word.start..word.end] == b"\"id\"" && depth == 1;
                    if is_id && reader.expect(b':').is_ok() {
                        let id = reader.scalar().ok();
                        // Where the line was cut, a number may have lost its end.
                        let is_whole = matches!(reader.peek(), Some(b',' | b'}'));
                        let is_text = |id: &Span| !id.of(reader.line).is_empty();
                        self.id = id.filter(|id| is_whole && is_text(id)).or(self.id);
                    }
                    continue;
                }
                _ => {}
            }
            reader.at += 1;
        }
    }

    fn prompt(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.check_first(reader)?;
        let text = reader.string()?;
        self.pieces.push(Piece::Text(text));
        self.turns.push(Turn { role: Role::User, first: 0, end: 1 });
        Ok(())
    }

    fn messages(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        self.check_first(reader)?;
        reader.array(|reader| self.message(reader))
    }

    fn message(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        if self.turns.len() >= self.turns_max {
            return Err(reader.fault(format!("the plan holds {} messages", self.turns_max)));
        }
        let first = self.pieces.len();
        let mut role = None;
        let mut said = false;
        reader.object(|reader, key| match key.of(reader.line) {
            "role" => {
                let name = reader.string()?;
                role = Role::ALL.into_iter().find(|role| role.name() == name.of(reader.line));
                match role {
                    Some(_) => Ok(()),
                    None => Err(reader.fault("a role is system, user or assistant")),
                }
            }
            "content" if !said => {
                said = true;
                match reader.peek() {
                    Some(b'[') => reader.array(|reader| self.part(reader)),
                    _ => {
                        let text = reader.string()?;
                        self.piece(reader, Piece::Text(text))
                    }
                }
            }
            other => {
                let what = format!("{:?} is no key of a message: role, content", short(other));
                Err(reader.fault(what))
            }
        })?;
        let Some(role) = role.filter(|_| said) else {
            return Err(reader.fault("a message has a role and a content"));
        };
        self.turns.push(Turn { role, first, end: self.pieces.len() });
        Ok(())
    }

    /// A part of a message: a text or a picture.
    fn part(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let mut kind = None;
        let mut value = None;
        reader.object(|reader, key| match key.of(reader.line) {
            "type" => {
                kind = Some(reader.string()?);
                Ok(())
            }
            "text" => {
                value = Some(Piece::Text(reader.string()?));
                Ok(())
            }
            "image" => {
                value = Some(Piece::Picture(reader.string()?));
                Ok(())
            }
            other => {
                let what = format!("{:?} is no key of a part: type, text, image", short(other));
                Err(reader.fault(what))
            }
        })?;
        let kind = kind.map(|kind| kind.of(reader.line));
        match (kind, value) {
            (Some("text") | None, Some(piece @ Piece::Text(_)))
            | (Some("image") | None, Some(piece @ Piece::Picture(_))) => self.piece(reader, piece),
            _ => Err(reader.fault("a part is a text or an image")),
        }
    }

    fn piece(&mut self, reader: &Reader<'_>, piece: Piece) -> Result<()> {
        if self.pieces.len() >= self.pieces.capacity() {
            return Err(reader.fault(format!("the plan holds {} parts", self.pieces.len())));
        }
        self.pieces.push(piece);
        self.check_images(reader)
    }

    /// Refuses more pictures than there is room for, as soon as they are read.
    fn check_images(&self, reader: &Reader<'_>) -> Result<()> {
        match self.pictures() > self.images_max {
            true if self.images_max == 0 => {
                Err(reader.fault("a text model cannot see: pictures need a vision file (--mmproj)"))
            }
            true => Err(reader.fault(format!(
                "more than {}, for which the plan is (--max-images)",
                pictures(self.images_max)
            ))),
            false => Ok(()),
        }
    }

    fn check_first(&self, reader: &Reader<'_>) -> Result<()> {
        match self.turns.is_empty() {
            true => Ok(()),
            false => Err(reader.fault("a request has one \"prompt\" or one \"messages\"")),
        }
    }
}

/// So many of them, in words.
fn pictures(count: usize) -> String {
    format!("{count} picture{}", if count == 1 { "" } else { "s" })
}

fn pieces_max(turns_max: usize, images_max: usize) -> usize {
    // A text before, between and behind pictures.
    turns_max + 2 * images_max
}

/// A word of a stranger, short enough for a message.
fn short(word: &str) -> &str {
    let end = word.char_indices().nth(32).map_or(word.len(), |(index, _)| index);
    &word[..end]
}

/// A place in a line.
struct Reader<'l> {
    line: &'l mut [u8],
    at: usize,
}

impl Reader<'_> {
    fn fault(&self, what: impl fmt::Display) -> LineError {
        LineError { at: self.at, what: what.to_string() }
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.line.get(self.at) {
            self.at += 1;
        }
        self.line.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        match self.peek() {
            Some(found) if found == byte => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.fault(format!("{:?} is expected", char::from(byte)))),
        }
    }

    fn end(&mut self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.fault("nothing more is expected")),
        }
    }

    /// An object; `each` reads the value of a key.
    fn object(&mut self, mut each: impl FnMut(&mut Self, Span) -> Result<()>) -> Result<()> {
        self.expect(b'{')?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            self.peek();
            each(self, key)?;
            if !self.another(b'}')? {
                return Ok(());
            }
        }
    }

    /// A list; `each` reads a value.
    fn array(&mut self, mut each: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.expect(b'[')?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.peek();
            each(self)?;
            if !self.another(b']')? {
                return Ok(());
            }
        }
    }

    /// Whether a comma says that there is more, and not the end.
    fn another(&mut self, end: u8) -> Result<bool> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == end => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(self.fault(format!("',' or {:?} is expected", char::from(end)))),
        }
    }

    /// A string, whose escapes are taken away where it stands.
    fn string(&mut self) -> Result<Span> {
        self.expect(b'"')?;
        let start = self.at;
        let mut end = start;
        loop {
            match self.line.get(self.at).copied() {
                None => return Err(self.fault("a string is not closed")),
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Span { start, end });
                }
                Some(b'\\') => end += self.escape(end)?,
                Some(0..=0x1f) => return Err(self.fault("a control character in a string")),
                Some(byte) => {
                    self.line[end] = byte;
                    self.at += 1;
                    end += 1;
                }
            }
        }
    }

    /// An escape, written to `to` as what it stands for; gives how many bytes that are.
    fn escape(&mut self, to: usize) -> Result<usize> {
        let letter = self.line.get(self.at + 1).copied();
        let byte = match letter {
            Some(byte @ (b'"' | b'\\' | b'/')) => byte,
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'r') => b'\r',
            Some(b'b') => 8,
            Some(b'f') => 12,
            Some(b'u') => {
                let character = self.unicode()?;
                return Ok(character.encode_utf8(&mut self.line[to..to + 4]).len());
            }
            _ => return Err(self.fault("no escape of JSON")),
        };
        self.line[to] = byte;
        self.at += 2;
        Ok(1)
    }

    /// `\uXXXX`, or two of them that are one character.
    fn unicode(&mut self) -> Result<char> {
        let first = self.unit()?;
        let code = match first {
            0xd800..=0xdbff => {
                let second = self.unit()?;
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(self.fault("half a surrogate pair"));
                }
                0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            other => other,
        };
        char::from_u32(code).ok_or_else(|| self.fault("half a surrogate pair"))
    }

    fn unit(&mut self) -> Result<u32> {
        let digits = self.line.get(self.at..self.at + 6).filter(|text| text.starts_with(b"\\u"));
        let code = digits.and_then(|text| {
            text[2..]
                .iter()
                .try_fold(0, |sum, digit| Some(sum * 16 + char::from(*digit).to_digit(16)?))
        });
        let code =
            code.ok_or_else(|| self.fault("\\u and four hexadecimal digits are expected"))?;
        self.at += 6;
        Ok(code)
    }

    /// A string or a whole number as it was written: it is written back, so escapes stay.
    fn scalar(&mut self) -> Result<Span> {
        self.peek();
        let start = self.at;
        if self.line.get(start) != Some(&b'"') {
            self.positive()?;
            return Ok(Span { start, end: self.at });
        }
        self.at += 1;
        loop {
            match self.line[self.at..] {
                [b'"', ..] => break,
                // Half a surrogate pair is no text, so whoever reads the answer might refuse it.
                [b'\\', b'u', ..] => drop(self.unicode()?),
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => self.at += 2,
                [b'\\' | 0..=0x1f, ..] | [] => return Err(self.fault("no string of JSON")),
                [..] => self.at += 1,
            }
        }
        self.at += 1;
        Ok(Span { start, end: self.at })
    }

    /// A string with its quotes, whatever stands in it; nothing where it has no end.
    fn skip_string(&mut self) -> Option<Span> {
        let start = self.at;
        self.at += 1;
        loop {
            self.at += match self.line.get(self.at)? {
                b'"' => break,
                b'\\' => 2,
                _ => 1,
            };
        }
        self.at += 1;
        Some(Span { start, end: self.at })
    }

    /// A whole number.
    fn positive(&mut self) -> Result<u64> {
        let rest = &self.line[self.at..];
        let len = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = std::str::from_utf8(&rest[..len]).unwrap_or_default();
        let number = match digits.starts_with('0') && len > 1 {
            true => None,
            false => digits.parse().ok(),
        };
        let number = number.ok_or_else(|| self.fault("a whole number is expected"))?;
        self.at += len;
        Ok(number)
    }
}

#[cfg(test)]
mod tests;
