//! One call, as a line of `calls.csv`: written when it is done, read when an experiment goes on.
//!
//! A line that was cut off by whatever ended the program is no call: it is left out, and the call
//! is made again.

use std::fmt::Write as _;

/// What was measured of one call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call {
    /// Name of the condition.
    pub condition: String,
    /// Name of the system.
    pub system: String,
    /// Id of the prompt.
    pub prompt: String,
    /// Round, from 0.
    pub round: usize,
    /// From the request's first byte to the answer's last, milliseconds.
    pub latency_ms: f64,
    /// Until the first token, as the system says; 0 where it does not.
    pub first_token_ms: f64,
    /// Tokens of the prompt, as the system counts them.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Greatest resident set during the call, bytes.
    pub peak_bytes: u64,
    /// Faults served without storage.
    pub minor_faults: u64,
    /// Faults that read storage.
    pub major_faults: u64,
    /// Share of the call in which something runnable waited for a processor, percent; `None` where
    /// the kernel does not count that.
    pub pressure_percent: Option<f64>,
    /// FNV-1a of the text.
    pub text_hash: u64,
    /// Number of the run of the program that made it; 0 in files that do not tell. Calls of two
    /// runs were not made in turn.
    pub session: u64,
    /// Seconds from the experiment's beginning to the call's.
    pub started_s: f64,
}

/// The columns.
pub const HEADER: &str = "condition,system,prompt,round,latency_ms,first_token_ms,prompt_tokens,\
                          output_tokens,peak_bytes,minor_faults,major_faults,pressure_percent,\
                          text_hash,session,started_s";
/// How many there are.
const COLUMNS: usize = 15;

impl Call {
    /// Tokens generated a second.
    #[must_use]
    pub fn tokens_per_s(&self) -> f64 {
        self.output_tokens as f64 / (self.latency_ms / 1e3).max(1e-9)
    }

    /// What tells calls of an experiment apart.
    #[must_use]
    pub fn key(&self) -> (&str, &str, &str, usize) {
        (&self.condition, &self.system, &self.prompt, self.round)
    }

    /// The call as a line, without its end.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = String::new();
        let _ = write!(
            line,
            "{},{},{},{},{:.3},{:.3},{},{},{},{},{},{},{:016x},{},{:.3}",
            self.condition,
            self.system,
            self.prompt,
            self.round,
            self.latency_ms,
            self.first_token_ms,
            self.prompt_tokens,
            self.output_tokens,
            self.peak_bytes,
            self.minor_faults,
            self.major_faults,
            self.pressure_percent.map_or(String::new(), |percent| format!("{percent:.2}")),
            self.text_hash,
            self.session,
            self.started_s
        );
        line
    }

    /// The call of a line; `None` for what is no whole line.
    #[must_use]
    pub fn parse(line: &str) -> Option<Call> {
        let mut fields: Vec<&str> = line.split(',').collect();
        // Files of before there were sessions have a column less.
        let session: u64 = match fields.len() == COLUMNS {
            true => fields.remove(COLUMNS - 2).parse().ok()?,
            false => 0,
        };
        let [
            condition,
            system,
            prompt,
            round,
            latency_ms,
            first_token_ms,
            prompt_tokens,
            output_tokens,
            peak_bytes,
            minor_faults,
            major_faults,
            pressure_percent,
            text_hash,
            started_s,
        ] = fields[..]
        else {
            return None;
        };
        let call = Call {
            condition: condition.to_string(),
            system: system.to_string(),
            prompt: prompt.to_string(),
            round: round.parse().ok()?,
            latency_ms: latency_ms.parse().ok()?,
            first_token_ms: first_token_ms.parse().ok()?,
            prompt_tokens: prompt_tokens.parse().ok()?,
            output_tokens: output_tokens.parse().ok()?,
            peak_bytes: peak_bytes.parse().ok()?,
            minor_faults: minor_faults.parse().ok()?,
            major_faults: major_faults.parse().ok()?,
            pressure_percent: match pressure_percent {
                "" => None,
                percent => Some(percent.parse().ok()?),
            },
            text_hash: u64::from_str_radix(text_hash, 16).ok()?,
            session,
            started_s: started_s.parse().ok()?,
        };
        // The last field has three decimals; fewer mean that the line was cut off.
        let decimals = line.rsplit('.').next().map(str::len);
        (text_hash.len() == 16 && decimals == Some(3)).then_some(call)
    }
}

/// The calls of a file, whole lines only.
#[must_use]
pub fn parse_calls(text: &str) -> Vec<Call> {
    text.lines().filter_map(Call::parse).collect()
}

/// FNV-1a of a text.
#[must_use]
pub fn text_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_round_trips_and_a_cut_one_is_no_call() {
        let call = Call {
            condition: "none".to_string(),
            system: "dctms".to_string(),
            prompt: "P3".to_string(),
            round: 17,
            latency_ms: 812.125,
            first_token_ms: 101.5,
            prompt_tokens: 240,
            output_tokens: 50,
            peak_bytes: 161_304_576,
            minor_faults: 3,
            major_faults: 0,
            pressure_percent: Some(1.25),
            text_hash: text_hash("yes"),
            session: 17,
            started_s: 12.5,
        };
        let line = call.line();
        assert_eq!(Call::parse(&line), Some(call.clone()));
        for end in 0..line.len() {
            assert_eq!(Call::parse(&line[..end]), None, "{}", &line[..end]);
        }
        assert_eq!(
            parse_calls(&format!("{HEADER}\n{line}\n{}", &line[..40])),
            std::slice::from_ref(&call)
        );
        assert!((call.tokens_per_s() - 50.0 / 0.812_125).abs() < 1e-9);
        assert_eq!((HEADER.split(',').count(), line.split(',').count()), (COLUMNS, COLUMNS));
        let unknown = Call { pressure_percent: None, ..call.clone() };
        assert_eq!(Call::parse(&unknown.line()), Some(unknown.clone()));
        // A line of an older file.
        let old = line.replace(",17,12.500", ",12.500");
        assert_eq!(Call::parse(&old), Some(Call { session: 0, ..call }));
        for line in [unknown.line(), old] {
            assert!((0..line.len()).all(|end| Call::parse(&line[..end]).is_none()), "{line}");
        }
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(text_hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(text_hash("a"), 0xaf63_dc4c_8601_ec8c);
    }
}
