//! The envelope table: what `dctms` predicts against what the kernel counts, over models and
//! bounds, one process for each combination.
//!
//! The prediction is the M_max of a `dctms plan` before the run; the measurement is the process's
//! `VmHWM` when it has answered, which covers loading. What is run is short and of one sequence: an
//! arena is resident as a whole from the start. A row is on disk when it is measured, so a run can
//! be stopped and goes on. Rows that another build of `dctms` measured, or nobody knows which, are
//! measured again; those of models that are not asked for stay in the file, and are no part of the
//! verdict. A file whose lines are not understood is refused, not written anew.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use dctms_system::child::{bind_to_parent, kill_group};
use dctms_system::interrupt::stop_requested;
use serde_json::Value;

use crate::identity::{ModelIdentity, build_of};
use crate::outcome::{Class, Fault};
use crate::plot::charts::{Guide, points};
use crate::plot::{png, svg};
use crate::progress::Progress;
use crate::report::{HEAD, escape, mebibytes};
use crate::results::replace;
use crate::statistics::percentile;

/// Bounds and settings of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Combination {
    /// Tokens of a prompt, tokens generated.
    pub bounds: (u64, u64),
    /// Lanes.
    pub lanes: u64,
    /// Tokens of a prefill step.
    pub chunk: u64,
    /// Type of keys and values.
    pub kv_type: &'static str,
    /// Sequences.
    pub sequences: u64,
}

const fn of(
    bounds: (u64, u64),
    lanes: u64,
    chunk: u64,
    kv_type: &'static str,
    sequences: u64,
) -> Combination {
    Combination { bounds, lanes, chunk, kv_type, sequences }
}

/// Every value of each setting, and each pair of values of two settings that pull on the same
/// term of the envelope.
pub const COMBINATIONS: [Combination; 12] = [
    of((128, 16), 1, 32, "f16", 1),
    of((128, 16), 2, 256, "f16", 1),
    of((512, 64), 2, 256, "f16", 1),
    of((512, 64), 2, 64, "f32", 1),
    of((512, 64), 1, 512, "q8_0", 1),
    of((512, 64), 4, 128, "f16", 1),
    of((512, 64), 2, 128, "f16", 4),
    of((1024, 256), 2, 256, "q8_0", 2),
    of((1024, 256), 1, 256, "f32", 1),
    of((2048, 256), 2, 256, "f16", 1),
    of((2048, 256), 2, 512, "q8_0", 4),
    of((4096, 512), 2, 256, "f16", 1),
];

/// A measured combination.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The model.
    pub model: ModelIdentity,
    /// The program that was measured: see `build_of`; empty where it is not known.
    pub build: String,
    /// The settings as they stand in the file.
    pub settings: String,
    /// M_max, bytes.
    pub predicted: u64,
    /// `VmHWM`, bytes.
    pub measured: u64,
}

impl Row {
    /// Measured over predicted.
    #[must_use]
    pub fn tightness(&self) -> f64 {
        self.measured as f64 / self.predicted as f64
    }
}

const HEADER: &str = "model,model_bytes,model_hash,build,max_input,max_output,lanes,chunk,kv_type,\
                      sequences,predicted_bytes,measured_bytes,tightness";
/// That of files of before models had a hash.
const HEADER_BEFORE: &str = "model,model_bytes,build,max_input,max_output,lanes,chunk,kv_type,\
                             sequences,predicted_bytes,measured_bytes,tightness";

impl Combination {
    fn fields(&self) -> String {
        let ((input, output), lanes, chunk) = (self.bounds, self.lanes, self.chunk);
        format!("{input},{output},{lanes},{chunk},{},{}", self.kv_type, self.sequences)
    }

    fn words(&self) -> Vec<String> {
        let pairs = [
            ("--max-input", self.bounds.0.to_string()),
            ("--max-output", self.bounds.1.to_string()),
            ("--lanes", self.lanes.to_string()),
            ("--prefill-chunk", self.chunk.to_string()),
            ("--kv-type", self.kv_type.to_string()),
            ("--sequences", self.sequences.to_string()),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_string(), value]).collect()
    }
}

/// Measures every model under every combination that is not measured yet, and writes the table.
/// Gives the rows of these models.
///
/// # Errors
/// Files that cannot be written; a run that fails for another reason than its bounds.
pub fn run(
    dctms: &Path,
    models: &[PathBuf],
    out: &Path,
    progress: &mut Progress,
) -> Result<Vec<Row>, Fault> {
    let fault = |error: std::io::Error| format!("{}: {error}", out.display());
    std::fs::create_dir_all(out).map_err(fault)?;
    let path = out.join("envelope.csv");
    let build =
        build_of(dctms).map_err(|error| Fault::from(format!("{}: {error}", dctms.display())))?;
    let mut asked: Vec<ModelIdentity> = Vec::new();
    let mut paths: Vec<&PathBuf> = Vec::new();
    for model in models {
        let identity = ModelIdentity::of(model);
        // One that is named twice is measured once.
        if !asked.contains(&identity) {
            asked.push(identity);
            paths.push(model);
        }
    }
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.map_err(fault)?,
    };
    let mut rows = parse(&text).map_err(|what| {
        let what = format!("{}: {what}; give another --out", path.display());
        Fault::new(Class::Usage, what)
    })?;
    // A row without a hash may be of the file of its name and length.
    let is_same = |old: &ModelIdentity, model: &ModelIdentity| {
        let alike = (&old.name, old.bytes) == (&model.name, model.bytes);
        alike && (old.hash.is_empty() || old.hash == model.hash)
    };
    let is_due = |row: &Row| asked.iter().any(|model| is_same(&row.model, model));
    rows.retain(|row| !is_due(row) || (row.build == build && asked.contains(&row.model)));
    replace(&path, csv(&rows).as_bytes()).map_err(fault)?;
    let mut file = OpenOptions::new().append(true).open(&path).map_err(fault)?;
    let is_open = |rows: &[Row], model: &ModelIdentity, settings: &str| {
        !rows.iter().any(|row| row.model == *model && row.settings == settings)
    };
    let open = asked.iter().flat_map(|model| COMBINATIONS.iter().map(move |it| (model, it)));
    progress.begin(open.filter(|(model, it)| is_open(&rows, model, &it.fields())).count(), None);
    for (model_path, model) in paths.into_iter().zip(&asked) {
        for combination in &COMBINATIONS {
            let settings = combination.fields();
            if !is_open(&rows, model, &settings) {
                continue;
            }
            let start = std::time::Instant::now();
            let measured = measure(dctms, model_path, combination, out);
            let _ = std::fs::remove_file(out.join(PROMPT_FILE));
            let what = format!("{} {settings}", model.name);
            match measured? {
                Measured::Bytes(predicted, measured) => {
                    let (model, build) = (model.clone(), build.clone());
                    let row = Row { model, build, settings, predicted, measured };
                    writeln!(file, "{}", line(&row)).map_err(fault)?;
                    progress.step(&what, start.elapsed());
                    rows.push(row);
                }
                Measured::OverBound(said) => {
                    progress.note(&format!("{what}: over a bound: {said}"))
                }
            }
        }
    }
    progress.end();
    rows.retain(|row| asked.contains(&row.model));
    Ok(rows)
}

/// Tokens that are run: a whole arena is resident from the start, so what is run beyond a few
/// steps of each phase does not change the peak.
const PROMPT_TOKENS: u64 = 40;
const OUTPUT_TOKENS: u64 = 4;

/// The prompt, while a combination is measured.
const PROMPT_FILE: &str = "prompt.ids";

/// What came of a combination.
enum Measured {
    /// Predicted and measured bytes.
    Bytes(u64, u64),
    /// It is over a bound, the model's context mostly: the program's words.
    OverBound(String),
}

/// Plans and runs a combination.
fn measure(
    dctms: &Path,
    model: &Path,
    combination: &Combination,
    out: &Path,
) -> Result<Measured, Fault> {
    let ids = out.join(PROMPT_FILE);
    let tokens = PROMPT_TOKENS.min(combination.bounds.0);
    let text: Vec<String> = (0..tokens).map(|index| (index % 200 + 3).to_string()).collect();
    let fault = |what: String| Fault::from(what);
    std::fs::write(&ids, text.join(" "))
        .map_err(|error| fault(format!("{}: {error}", ids.display())))?;
    let mut command = Command::new(dctms);
    command.arg("plan").arg(model).args(combination.words()).arg("--json");
    let planned = output_of(&mut command)?;
    if planned.status.code() == Some(Class::OverBound.exit_code().into()) {
        let said = String::from_utf8_lossy(&planned.stderr);
        return Ok(Measured::OverBound(said.trim().to_string()));
    }
    let plan = answer(&command, &planned)?;
    let mut command = Command::new(dctms);
    command.arg("run").arg(model).args(combination.words()).args(["--ignore-eos", "--json"]);
    command.arg("--prompt-ids").arg(&ids);
    command.args(["-n", &OUTPUT_TOKENS.min(combination.bounds.1).to_string()]);
    let done = output_of(&mut command)?;
    let value = answer(&command, &done)?;
    let bytes =
        |name: &str| value[name].as_u64().ok_or_else(|| fault(format!("no {name}: {value}")));
    let predicted = plan["envelope"]["total"].as_u64();
    let predicted = predicted.ok_or_else(|| fault("a plan without a total".to_string()))?;
    if predicted != bytes("m_max_bytes")? {
        let states = bytes("m_max_bytes")?;
        return Err(fault(format!("planned {predicted}, the run states {states}")));
    }
    Ok(Measured::Bytes(predicted, bytes("peak_bytes")?))
}

/// What a program printed, as JSON; a program that failed says why.
fn answer(command: &Command, output: &Output) -> Result<Value, Fault> {
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        let class = Class::of_code(output.status.code());
        Fault::new(class, format!("{command:?}: {}: {said}", output.status))
    })
}

/// Runs a program to its end, or until this one is asked to stop.
fn output_of(command: &mut Command) -> Result<Output, Fault> {
    let fault = |error: std::io::Error| Fault::from(error.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = bind_to_parent(command)
        .spawn()
        .map_err(|error| Fault::from(format!("{}: {error}", command.get_program().display())))?;
    let pid = child.id();
    let (sender, output) = channel();
    let reader = std::thread::spawn(move || sender.send(child.wait_with_output()));
    loop {
        match output.recv_timeout(Duration::from_millis(100)) {
            Ok(output) => return output.map_err(fault),
            Err(RecvTimeoutError::Timeout) if !stop_requested() => {}
            Err(_) => {
                kill_group(pid);
                let _ = reader.join();
                return Err(Fault::new(Class::Interrupted, "stopped; the same command goes on"));
            }
        }
    }
}

fn line(row: &Row) -> String {
    let Row { model: ModelIdentity { name, bytes, hash }, build, settings, .. } = row;
    let (name, tightness, predicted, measured) =
        (quoted(name), row.tightness(), row.predicted, row.measured);
    format!("{name},{bytes},{hash},{build},{settings},{predicted},{measured},{tightness:.5}")
}

/// A name as a field of CSV.
fn quoted(name: &str) -> String {
    match name.contains([',', '"']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_string(),
    }
}

/// The reverse of `quoted`.
fn unquoted(field: &str) -> String {
    let inner = field.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
    inner.map_or_else(|| field.to_string(), |it| it.replace("\"\"", "\""))
}

fn csv(rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| line(row) + "\n");
    std::iter::once(format!("{HEADER}\n")).chain(lines).collect()
}

/// The rows of a file. Its last line may have been cut off, and is left out.
///
/// # Errors
/// Columns or a line that are not known: writing the file anew would lose them.
fn parse(text: &str) -> Result<Vec<Row>, String> {
    let Some(header) = text.lines().next() else { return Ok(Vec::new()) };
    if ![HEADER, HEADER_BEFORE].contains(&header) {
        return Err(format!("its columns are not those of this program: {header}"));
    }
    let mut rows = Vec::new();
    let last = text.lines().count() - 1;
    for (index, line) in text.lines().enumerate().skip(1) {
        match parse_row(line, header) {
            Some(row) => rows.push(row),
            None if index == last => {}
            None => return Err(format!("line {} is no row", index + 1)),
        }
    }
    Ok(rows)
}

fn parse_row(line: &str, header: &str) -> Option<Row> {
    // Only the name, which is first, may have commas of its own.
    let mut fields: Vec<&str> = line.rsplitn(header.split(',').count(), ',').collect();
    fields.reverse();
    if header == HEADER_BEFORE && fields.len() > 2 {
        fields.insert(2, "");
    }
    let [name, bytes, hash, build, settings @ .., predicted, measured, tightness] = &fields[..]
    else {
        return None;
    };
    let whole = settings.len() == 6 && tightness.len() == "0.00000".len();
    let hash = hash.to_string();
    Some(Row {
        model: ModelIdentity { name: unquoted(name), bytes: bytes.parse().ok()?, hash },
        build: build.to_string(),
        settings: settings.join(","),
        predicted: predicted.parse().ok().filter(|_| whole)?,
        measured: measured.parse().ok()?,
    })
}

/// What the table shows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Combinations.
    pub count: usize,
    /// How many passed M_max.
    pub violations: usize,
    /// Median of measured over predicted.
    pub median: f64,
    /// Least of measured over predicted.
    pub least: f64,
    /// Greatest of measured over predicted.
    pub greatest: f64,
}

/// The verdict on rows.
#[must_use]
pub fn verdict(rows: &[Row]) -> Verdict {
    let mut ratios: Vec<f64> = rows.iter().map(Row::tightness).collect();
    ratios.sort_by(f64::total_cmp);
    Verdict {
        count: rows.len(),
        violations: rows.iter().filter(|row| row.measured > row.predicted).count(),
        median: percentile(&ratios, 0.5),
        least: ratios.first().copied().unwrap_or(0.0),
        greatest: ratios.last().copied().unwrap_or(0.0),
    }
}

/// Writes the plots and the page of the table, with the command that repeats it.
///
/// # Errors
/// Files that cannot be written.
pub fn report(
    rows: &[Row],
    out: &Path,
    machine: &[(String, String)],
    command: &str,
) -> Result<(), String> {
    let fault = |error: std::io::Error| format!("{}: {error}", out.display());
    let mut models: Vec<&ModelIdentity> = Vec::new();
    for row in rows {
        if !models.contains(&&row.model) {
            models.push(&row.model);
        }
    }
    let series = |value: fn(&Row) -> (f64, f64)| -> Vec<(String, Vec<(f64, f64)>)> {
        let of = |model: &&ModelIdentity| {
            let own = rows.iter().filter(|row| row.model == **model);
            (model.name.trim_end_matches(".gguf").to_string(), own.map(value).collect())
        };
        models.iter().map(of).collect()
    };
    let sizes = points(
        "Peak of the process against M_max; the line is equality",
        ("M_max, MiB", "VmHWM, MiB"),
        &series(|row| (mebibytes(row.predicted), mebibytes(row.measured))),
        Guide::Equality,
    );
    let tightness = points(
        "Tightness: peak of the process over M_max",
        ("M_max, MiB", "VmHWM / M_max"),
        &series(|row| (mebibytes(row.predicted), row.tightness())),
        Guide::None,
    );
    std::fs::create_dir_all(out.join("plots")).map_err(fault)?;
    let title = "Predicted and measured memory";
    let mut page = format!("{HEAD}<title>{title}</title></head>\n<body>\n<h1>{title}</h1>\n");
    let all = verdict(rows);
    page += &format!(
        "<p>{} combinations, {} violations, median tightness {:.4} (least {:.4}, greatest \
         {:.4}). Command: <code>{}</code></p>\n",
        all.count,
        all.violations,
        all.median,
        all.least,
        all.greatest,
        escape(command)
    );
    if rows.iter().any(|row| row.build.is_empty()) {
        page += "<p>Of rows without a build it is not known which build measured them; they may be \
                 of several.</p>\n";
    }
    for (name, figure) in [("envelope-sizes", &sizes), ("envelope-tightness", &tightness)] {
        replace(&out.join(format!("plots/{name}.png")), &png(figure)).map_err(fault)?;
        page += &svg(figure);
    }
    page += "<table>\n<tr><th>model</th><th>N, M, lanes, chunk, KV type, sequences</th>\
             <th>M_max</th><th>VmHWM</th><th>tightness</th></tr>\n";
    for row in rows {
        page += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.4}</td></tr>\n",
            escape(&row.model.name),
            row.settings.replace(',', ", "),
            row.predicted,
            row.measured,
            row.tightness()
        );
    }
    page += "</table>\n<table>\n";
    for (name, value) in machine {
        page += &format!("<tr><td>{}</td><td>{}</td></tr>\n", escape(name), escape(value));
    }
    page += "</table>\n</body></html>\n";
    replace(&out.join("envelope.html"), page.as_bytes()).map_err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_and_cut_lines_are_measured_again() {
        let row = |predicted, measured| Row {
            model: ModelIdentity { name: r#"a, "b".gguf"#.to_string(), bytes: 7, hash: "h".into() },
            build: "0123456789abcdef".to_string(),
            settings: COMBINATIONS[0].fields(),
            predicted,
            measured,
        };
        let rows = [row(1000, 990), row(1000, 1001), row(1000, 970)];
        let text = csv(&rows);
        assert_eq!(parse(&text).unwrap(), rows);
        assert_eq!(parse(&text[..text.len() - 3]).unwrap(), rows[..2]);
        assert_eq!(parse(""), Ok(vec![]));
        // What is not understood is refused: it would be lost when the file is written anew.
        let broken = text.replacen("1000,990", "1000", 1);
        assert!(parse(&broken).unwrap_err().contains("line 2"), "{:?}", parse(&broken));
        let other = text.replacen("model_bytes,", "", 1);
        assert!(parse(&other).unwrap_err().contains("columns"));
        // Of before models had a hash: another identity than any file that is there.
        let before = text.replace(",model_hash", "").replace(",7,h,", ",7,");
        let old = parse(&before).unwrap();
        assert_eq!((old.len(), &old[0].model.hash[..], old[0].predicted), (3, "", 1000));
        assert!(old[0].model != rows[0].model && old[0].build == rows[0].build);
        let verdict = verdict(&rows);
        assert_eq!((verdict.count, verdict.violations), (3, 1));
        assert!((verdict.median - 0.99).abs() < 1e-12);
    }

    #[test]
    fn combinations_differ() {
        for (index, one) in COMBINATIONS.iter().enumerate() {
            assert!(!COMBINATIONS[..index].contains(one), "{one:?}");
        }
    }
}
