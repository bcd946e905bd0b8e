//! Words to an experiment.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lexopt::prelude::*;

use crate::child::{Asked, SystemCommand};
use crate::condition::{Condition, NeighbourSettings};
use crate::machine::memory_bytes;
use crate::prompts::{Prompt, prompts};
use crate::protocol::{PRODUCT, Plan, Sharing};
use crate::record::text_hash;
use crate::results::Retry;
use crate::systems::{
    Bounds, NO_MMAP, SYSTEMS, adapter, llama_systems, not_mapped, require_told_apart, shown_words,
};
use crate::turns;

/// What the words ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// The experiment.
    Experiment(Box<Experiment>),
    /// The envelope table.
    Envelope {
        /// The product.
        dctms: PathBuf,
        /// The models.
        models: Vec<PathBuf>,
        /// Where results go.
        out: PathBuf,
    },
    /// The usage.
    Help,
}

/// An experiment, and what has to be made before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experiment {
    /// The protocol.
    pub plan: Plan,
    /// The product.
    pub dctms: PathBuf,
    /// The model.
    pub model: PathBuf,
    /// Compiled models that must be there: one for each system that maps weights.
    pub compiled: Vec<PathBuf>,
    /// Bounds and rounds, for people.
    pub settings: Vec<(String, String)>,
    /// Only the report is made anew.
    pub report_only: bool,
}

/// The usage.
pub const USAGE: &str = "\
dctms experiment --model FILE --out DIR [options]
dctms experiment --envelope --model FILE [--model FILE …] --out DIR

Systems (all run interleaved; each stays up)
  --systems LIST          of dynamic,prototype,dctms (all three)
  --llama-server FILE     llama.cpp's server, mapped (its default) and not mapped
  --adapter NAME=COMMAND  any program that answers lines of JSON as dctms run --requests does;
                          words are separated by blanks; what is started is what is
                          measured, so a script must exec the program
Conditions
  --conditions LIST       of none,burner,bursts,churn,group-1.05-m-max,group-m-max,
                          group-0.9-dynamic (all; groups need root, and are skipped by name)
  --burst-bytes N         of the neighbour that allocates (1073741824)
  --churn-bytes N         of the file that is read (as much as the machine has memory; what stays
                          cached of a smaller one is read from the cache, and turns nothing over;
                          skipped where --work is a file system in memory)
Size
  --rounds N              calls of each prompt without disturbance (50)
  --pressure-rounds N     under each other condition (as --rounds)
  --max-output M          tokens of an answer (256)
  --max-input N           tokens of a prompt (1024)
  --lanes L               threads of every system (2)
  --prompts FILE.json     other prompts
  --quick                 3 rounds, 16 tokens, conditions none, burner and group-1.05-m-max,
                          calls of 40 s at most, two and a half minutes at most, shared out over
                          the conditions; other options are said beside it
  --call-limit S          longest call (300); a system's first may take as long, its start included
  --cell-limit S          all calls of a cell (3600)
  --deadline S            stops after so long, or before a prompt whose calls would not be done by
                          then (as long as in the round before, or the longest known); no other
                          condition is begun after that; the same command goes on, as after a signal
Other
  --retry                 tries again what refused, ended, thrashed or was cut off (what was
                          skipped is tried again in any case)
  --work DIR              compiled models and scratch files (DIR/work); not results
  --report-only           the report of what is there; nothing is started
  --dctms FILE --baseline FILE   the programs, where they are not beside this one

One experiment runs on a machine at a time: it holds a lock in the folder of temporary files.

Exit codes: 0 done, or stopped at the deadline with results; 1 the system refused, a call passed
M_max, the product's M_max changed between calls, systems with the same kernels gave different
texts, or some system has no call under any condition; 2, 3, 4 the last, where the product says
that the file is defective, does not fit, is over a bound; 64 usage, no such program, another
experiment is running, or other settings or builds than those of the results that are there; 130
stopped by a signal before all was done.
";

/// Reads the words.
///
/// # Errors
/// What is wrong with them.
pub fn parse(parser: &mut lexopt::Parser) -> Result<Task, String> {
    let words = Words::read(parser)?;
    if words.help {
        return Ok(Task::Help);
    }
    let out = words.out.clone().ok_or("--out DIR is needed")?;
    if words.envelope {
        let models = words.models.clone();
        if models.is_empty() {
            return Err("--model FILE is needed".to_string());
        }
        return Ok(Task::Envelope { dctms: words.dctms, models, out });
    }
    let [model] = &words.models[..] else {
        return Err("one --model FILE is needed".to_string());
    };
    words.experiment(model, &out).map(Box::new).map(Task::Experiment)
}

/// The options as they stand.
struct Words {
    models: Vec<PathBuf>,
    out: Option<PathBuf>,
    work: Option<PathBuf>,
    dctms: PathBuf,
    baseline: PathBuf,
    systems: Vec<String>,
    llama: Option<PathBuf>,
    adapters: Vec<SystemCommand>,
    conditions: Vec<Condition>,
    bursts: u64,
    churn: u64,
    rounds: u64,
    pressure_rounds: Option<u64>,
    max_output: u64,
    max_input: u64,
    lanes: u64,
    prompts: Option<PathBuf>,
    call_limit: u64,
    cell_limit: u64,
    deadline: Option<u64>,
    sharing: Sharing,
    retry: Retry,
    report_only: bool,
    envelope: bool,
    help: bool,
}

impl Words {
    fn new() -> Words {
        let beside = |name: &str| {
            let own = std::env::current_exe().ok();
            let folder = own.and_then(|own| own.parent().map(Path::to_path_buf));
            folder.unwrap_or_default().join(name)
        };
        Words {
            models: Vec::new(),
            out: None,
            work: None,
            dctms: beside("dctms"),
            baseline: beside("dctms-baseline"),
            systems: SYSTEMS.map(str::to_string).to_vec(),
            llama: None,
            adapters: Vec::new(),
            conditions: Condition::ALL.to_vec(),
            bursts: 1 << 30,
            churn: memory_bytes(),
            rounds: 50,
            pressure_rounds: None,
            max_output: 256,
            max_input: 1024,
            lanes: 2,
            prompts: None,
            call_limit: 300,
            cell_limit: 3600,
            deadline: None,
            sharing: Sharing::InOrder,
            retry: Retry::Skipped,
            report_only: false,
            envelope: false,
            help: false,
        }
    }

    fn read(parser: &mut lexopt::Parser) -> Result<Words, String> {
        let mut words = Words::new();
        let all: Vec<_> = parser.raw_args().map_err(|error| error.to_string())?.collect();
        // A quick look is what options change, wherever it stands among them.
        if all.iter().any(|word| word == "--quick") {
            words.quick();
        }
        let mut parser = lexopt::Parser::from_args(all);
        while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
            let Long(name) = argument else {
                return Err(argument.unexpected().to_string());
            };
            let name = name.to_string();
            words.option(&name, &mut parser)?;
        }
        Ok(words)
    }

    /// What a quick look is, before other options are read.
    fn quick(&mut self) {
        self.sharing = Sharing::Equal;
        (self.rounds, self.max_output) = (3, 16);
        (self.bursts, self.deadline) = (256 << 20, Some(150));
        // Far below the deadline, so that a system that thrashes is told of.
        self.call_limit = 40;
        self.conditions = vec![Condition::None, Condition::Burner, Condition::GroupRoom];
    }

    fn option(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), String> {
        match name {
            "help" => self.help = true,
            "envelope" => self.envelope = true,
            "report-only" => self.report_only = true,
            "retry" => self.retry = Retry::Everything,
            "quick" => {}
            "model" => self.models.push(path(parser)?),
            "out" => self.out = Some(path(parser)?),
            "work" => self.work = Some(path(parser)?),
            "dctms" => self.dctms = path(parser)?,
            "baseline" => self.baseline = path(parser)?,
            "llama-server" => self.llama = Some(path(parser)?),
            "prompts" => self.prompts = Some(path(parser)?),
            "systems" => {
                self.systems = list(&text(parser)?);
                let unknown = self.systems.iter().find(|it| !SYSTEMS.contains(&it.as_str()));
                if let Some(unknown) = unknown {
                    return Err(format!("--systems {unknown}: of {}", SYSTEMS.join(",")));
                }
            }
            "conditions" => {
                let all = Condition::ALL.map(Condition::name).join(",");
                let named = |name: &String| {
                    let unknown = || format!("--conditions {name}: of {all}");
                    Condition::from_name(name).ok_or_else(unknown)
                };
                let wanted: Vec<Condition> =
                    list(&text(parser)?).iter().map(named).collect::<Result<_, _>>()?;
                // In our order: what one condition needs of another is measured before it.
                let all = Condition::ALL.into_iter();
                self.conditions = all.filter(|condition| wanted.contains(condition)).collect();
                if self.conditions.is_empty() {
                    return Err("--conditions: no condition".to_string());
                }
            }
            "adapter" => self.adapters.push(adapter(&text(parser)?)?),
            "burst-bytes" => self.bursts = number(name, parser)?,
            "churn-bytes" => self.churn = number(name, parser)?,
            "rounds" => self.rounds = rounds(name, parser)?,
            "pressure-rounds" => self.pressure_rounds = Some(rounds(name, parser)?),
            "max-output" => self.max_output = number(name, parser)?,
            "max-input" => self.max_input = number(name, parser)?,
            "lanes" => self.lanes = number(name, parser)?,
            "call-limit" => self.call_limit = number(name, parser)?,
            "cell-limit" => self.cell_limit = number(name, parser)?,
            "deadline" => self.deadline = Some(number(name, parser)?),
            other => return Err(format!("--{other}: no such option")),
        }
        Ok(())
    }

    fn experiment(&self, model: &Path, out: &Path) -> Result<Experiment, String> {
        let work = self.work.clone().unwrap_or_else(|| out.join("work"));
        let bounds = [
            ("--max-input", self.max_input),
            ("--max-output", self.max_output),
            ("--lanes", self.lanes),
        ];
        let bounds = bounds.iter().flat_map(|(name, value)| [name.to_string(), value.to_string()]);
        let bounds: Vec<String> = bounds.collect();
        let shown = |path: &Path| path.display().to_string();
        let (mut systems, mut compiled) = (Vec::new(), Vec::new());
        for name in &self.systems {
            let mut words = match name.as_str() {
                PRODUCT => {
                    let start = [shown(&self.dctms), "run".to_string(), shown(model)];
                    let requests = ["--requests".to_string(), "-".to_string()];
                    start.into_iter().chain(requests).collect::<Vec<_>>()
                }
                kind => {
                    // A file of its own: pages of the cache belong to the group of who reads
                    // them first.
                    let file = work.join(format!("{kind}.dctms"));
                    let words = vec![shown(&self.baseline), kind.to_string(), shown(&file)];
                    compiled.push(file);
                    words
                }
            };
            words.extend(bounds.clone());
            systems.push(SystemCommand { name: name.clone(), words, asked: Asked::Lines });
        }
        if let Some(server) = &self.llama {
            let bounds = Bounds { context: self.max_input + self.max_output, lanes: self.lanes };
            // Nothing is started for a report, not even to ask for its help.
            let unmapped = if self.report_only { NO_MMAP } else { not_mapped(server)? };
            systems.extend(llama_systems(server, model, bounds, unmapped));
        }
        systems.extend(self.adapters.clone());
        require_told_apart(&systems)?;
        let plan = Plan {
            out: out.to_path_buf(),
            systems,
            conditions: self.conditions.clone(),
            prompts: prompts(self.prompts.as_deref())?,
            rounds: self.rounds as usize,
            pressure_rounds: self.pressure_rounds.unwrap_or(self.rounds) as usize,
            max_output: self.max_output,
            call_limit: Duration::from_secs(self.call_limit),
            cell_limit: Duration::from_secs(self.cell_limit),
            deadline: self.deadline.map(Duration::from_secs),
            sharing: self.sharing,
            retry: self.retry,
            neighbours: NeighbourSettings {
                program: self.baseline.clone(),
                burst_bytes: self.bursts,
                file: work.join("churn.bin"),
                file_bytes: self.churn,
            },
        };
        Ok(Experiment {
            settings: self.settings(&plan),
            plan,
            dctms: self.dctms.clone(),
            model: model.to_path_buf(),
            compiled,
            report_only: self.report_only,
        })
    }

    fn settings(&self, plan: &Plan) -> Vec<(String, String)> {
        let conditions: Vec<&str> = plan.conditions.iter().map(|it| it.name()).collect();
        let prompts: Vec<String> = plan.prompts.iter().map(shown_prompt).collect();
        let mut settings = vec![
            ("prompt tokens at most".to_string(), self.max_input.to_string()),
            ("output tokens at most".to_string(), self.max_output.to_string()),
            ("lanes".to_string(), self.lanes.to_string()),
            ("rounds".to_string(), plan.rounds.to_string()),
            ("rounds under pressure".to_string(), plan.pressure_rounds.to_string()),
            ("conditions".to_string(), conditions.join(", ")),
            ("prompts".to_string(), prompts.join(", ")),
        ];
        // A neighbour counts where it is asked for.
        if plan.conditions.contains(&Condition::Bursts) {
            settings.push(("burst bytes".to_string(), self.bursts.to_string()));
        }
        if plan.conditions.contains(&Condition::Churn) {
            settings.push(("churn bytes".to_string(), self.churn.to_string()));
        }
        let more = [
            ("call limit, s", self.call_limit.to_string()),
            ("cell limit, s", self.cell_limit.to_string()),
            ("turn order", turns::ORDER.to_string()),
            ("experiment version", env!("CARGO_PKG_VERSION").to_string()),
        ];
        settings.extend(more.map(|(name, value)| (name.to_string(), value)));
        let words = plan.systems.iter();
        settings.extend(words.map(|it| (format!("system {}", it.name), shown_words(&it.words))));
        settings
    }
}

/// A prompt in settings: two files may call different texts the same.
fn shown_prompt(prompt: &Prompt) -> String {
    format!("{} {} {:016x}", prompt.id, prompt.category, text_hash(&prompt.text))
}

fn list(text: &str) -> Vec<String> {
    text.split(',').filter(|word| !word.is_empty()).map(str::to_string).collect()
}

fn text(parser: &mut lexopt::Parser) -> Result<String, String> {
    let value = parser.value().map_err(|error| error.to_string())?;
    value.into_string().map_err(|value| format!("{}: not UTF-8", value.display()))
}

fn path(parser: &mut lexopt::Parser) -> Result<PathBuf, String> {
    Ok(PathBuf::from(parser.value().map_err(|error| error.to_string())?))
}

fn number(name: &str, parser: &mut lexopt::Parser) -> Result<u64, String> {
    let text = text(parser)?;
    let most = NUMBER_MAX;
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("--{name} {text}: a number from 1 to {most}"))
}

/// Greatest number of an option: bytes of a file that a file system may hold. Times are seconds, and
/// this many are no overflow.
const NUMBER_MAX: u64 = 1 << 42;
/// Most calls of each prompt under a condition.
const ROUNDS_MAX: u64 = 10_000;

fn rounds(name: &str, parser: &mut lexopt::Parser) -> Result<u64, String> {
    let rounds = number(name, parser)?;
    match rounds <= ROUNDS_MAX {
        true => Ok(rounds),
        false => Err(format!("--{name} {rounds}: at most {ROUNDS_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &str) -> Result<Task, String> {
        parse(&mut lexopt::Parser::from_args(words.split_whitespace()))
    }

    #[test]
    fn words_become_systems_in_order() {
        let words = "--model m.gguf --out o --llama-server /l/llama-server --adapter mlx=py x.py \
                     --conditions burner,none --rounds 7 --lanes 3";
        // An adapter's command is one word of the shell; here it is cut at the blank.
        assert!(parsed(words).is_err());
        let words = words.replace("mlx=py x.py", "mlx=py");
        let Ok(Task::Experiment(experiment)) = parsed(&words) else { panic!("{words}") };
        let plan = &experiment.plan;
        let names: Vec<&str> = plan.systems.iter().map(|it| it.name.as_str()).collect();
        let expected = ["dynamic", "prototype", "dctms", "llama.cpp", "llama.cpp-no-mmap", "mlx"];
        assert_eq!(names, expected);
        assert_eq!(plan.conditions, [Condition::None, Condition::Burner]);
        assert_eq!((plan.rounds, plan.pressure_rounds), (7, 7));
        assert!(plan.systems[2].words.ends_with(&["--lanes".to_string(), "3".to_string()]));
        assert_eq!(experiment.compiled.len(), 2);
    }

    #[test]
    fn a_quick_look_is_changed_by_other_options_in_any_order() {
        for words in ["--max-output 32 --quick --rounds 9", "--rounds 9 --quick --max-output 32"] {
            let words = format!("--model m.gguf --out o {words}");
            let Ok(Task::Experiment(experiment)) = parsed(&words) else { panic!("{words}") };
            let Plan { rounds, max_output, call_limit, deadline, .. } = experiment.plan;
            assert_eq!((rounds, max_output), (9, 32));
            assert!(2 * call_limit < deadline.unwrap());
        }
    }

    #[test]
    fn what_makes_calls_comparable_is_in_the_settings() {
        let of = |words: &str| {
            let words = format!("--model m.gguf --out o {words}");
            let Ok(Task::Experiment(experiment)) = parsed(&words) else { panic!("{words}") };
            experiment.settings
        };
        let value = |settings: &[(String, String)], name: &str| {
            settings.iter().find(|it| it.0 == name).map(|it| it.1.clone())
        };
        let own = of("--conditions bursts --burst-bytes 7");
        assert_eq!(value(&own, "burst bytes").unwrap(), "7");
        assert_eq!(value(&own, "churn bytes"), None, "it is not among the conditions");
        let prompts = value(&own, "prompts").unwrap();
        let other = concat!(env!("CARGO_MANIFEST_DIR"), "/data/prompts-random.json");
        let others = value(&of(&format!("--prompts {other}")), "prompts").unwrap();
        assert!(prompts.starts_with("P1 short factual ") && prompts != others, "{prompts}");
        let limits = of("--call-limit 7 --cell-limit 8");
        let limit = |name: &str| value(&limits, name).unwrap();
        assert_eq!([limit("call limit, s"), limit("cell limit, s")], ["7", "8"]);
        assert!(limit("turn order").contains("round + prompt"));
    }

    #[test]
    fn wrong_words_name_themselves() {
        for (words, part) in [
            ("--model m --out o --conditions storm", "storm"),
            ("--model m --out o --systems dynamic,other", "other"),
            ("--model m --out o --rounds 0", "--rounds 0"),
            ("--model m", "--out"),
            ("--out o", "--model"),
            ("--model m --out o --what", "--what"),
            ("--model m --out o --rounds 10001", "10000"),
            ("--model m --out o --deadline 18446744073709551615", "--deadline"),
            ("--model m --out o --conditions ,", "no condition"),
            ("--model m --out o --systems ,", "no system"),
            ("--model m --out o --systems dctms,dctms", "two systems"),
            ("--model m --out o --adapter a=x --adapter a=y", "two systems"),
            ("--model m --out o --adapter dynamic=x", "comes with"),
            ("--model m --out o --systems dctms --adapter prototype=x", "comes with"),
            ("--model m --out o --adapter llama.cpp=x", "comes with"),
            ("--model m --out o --adapter ../x=y", "letters"),
            ("--model m --out o --adapter =y", "letters"),
            ("--model m --out o --adapter a,b=y", "letters"),
            ("--model m --out o --adapter a=", "NAME=COMMAND"),
        ] {
            let error = parsed(words).unwrap_err();
            assert!(error.contains(part), "{words}: {error}");
        }
        assert_eq!(parsed("--help"), Ok(Task::Help));
    }
}
