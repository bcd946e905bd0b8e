//! What each command takes, as it is printed for `dctms help` and `dctms COMMAND --help`.
//!
//! Texts only; the words themselves are read where each command is.

/// The commands and the options that matter most.
pub const GENERAL: &str = "\
dctms: language models inside a memory envelope that is proven before they run

  dctms plan [MODEL]              the memory envelope, before anything is loaded
  dctms plan MODEL MODEL …        several models resident together under one limit
  dctms plan --diff OLD NEW       what changed between two plans, in bytes and why
  dctms run [MODEL] -p TEXT       generate text (chat template, greedy)
  dctms eval [MODEL] --perplexity FILE
                                  perplexity of a text, as llama-perplexity's
  dctms bench [MODEL]             speed, latency, memory (--depth N --json --compare OLD.json)
  dctms compile MODEL -o FILE     packed weights in a file that loads in a fraction of the time
  dctms verify PLAN.json          check a plan from disk (--model FILE: against its model)
  dctms doctor                    what this machine allows, and its rates (--machine-out FILE)
  dctms inspect [MODEL]           metadata, tensors and types of a model file
  dctms pack FILE.csv             place buffers in one arena
  dctms synth SHAPE MIX -o FILE   a model of random weights at a published shape
  dctms experiment --model FILE --out DIR
                                  the paper's experiment beside other systems (--quick, --help)
  dctms help [COMMAND]            this text, or all options of a command

Plans: --max-input N --max-output M --sequences B --prefill-chunk C --kv-type f16|f32|q8_0
  --lanes L --isa scalar|avx2|avx512|amx --memory-limit BYTES --machine profile.json
  --mmproj FILE --max-images N --max-image-size WxH --mode serial|overlapped|phase-resident
  plan alone: --fit BYTES --chat --json --html FILE --hash -o FILE

Runs: -p TEXT, -f FILE, --prompt-ids FILE, --prompts FILE.jsonl or --requests FILE.jsonl; without,
  a conversation on standard input. -n TOKENS --temp T --top-k K --top-p P --min-p P --repeat-penalty R --seed S
  --system TEXT --stop TEXT --ignore-eos --raw --replan --json --image FILE …

Exit codes: 0 done; 1 the system refused; 2 a defect or unsupported feature of a file;
3 does not fit; 4 over a bound at run time; 64 usage;
130 interrupted before there was a result.
";

/// Options of every command that plans.
const PLANNING: &str = "
Bounds and machine
  --max-input N           tokens of a prompt (2048, or what the model's context and memory allow)
  --max-output M          tokens generated (256, or likewise)
  --sequences B           sequences decoded together (1)
  --prefill-chunk C       tokens of one prefill step (256)
  --kv-type TYPE          keys and values: f16 (default), f32 or q8_0
  --lanes L               threads (this machine's processors)
  --isa NAME              scalar, avx2, avx512 or amx (the best of this processor)
  --memory-limit BYTES    the limit that M_max is compared with: 157000000, 512M, 2GB
  --machine FILE          a profile of a machine elsewhere: its memory, lanes, instructions
  --weights mapped        map the packed weights from a compiled model (made once, in the
                          cache): less is resident, pages come and go; default resident
  --verify                compare every byte of a compiled model with its checksums
  --memory-first          cuts and small blocks where they save bytes and no time that shows
  --latency-first         no cut beyond what the data ask for (default)
  --activations q8|f32    f32 is for comparing with references
  --mmproj FILE           the vision file of a model that sees
  --max-images N          pictures of a request or conversation (1)
  --max-image-size WxH    pixels of the largest picture that is looked at (1024x1024)
  --family N              sizes of pictures (where a model takes any) and of chunks planned for in
                          the same arena, each a quarter of the one before (3; 1 without --mmproj)
  --oversize refuse|resize
                          a larger one is refused (default), or made smaller in its own shape
  --max-source-size WxH   pixels of the largest that is made smaller: so much is decoded, and
                          counted in M_max (twice each edge of --max-image-size); it means
                          --oversize resize
  --mode NAME             serial: the weights of both files stay; overlapped: and tiles are
                          encoded beside chunks of the prompt, and while answers go on;
                          phase-resident: each set is loaded when its turn comes (serial, unless
                          only the last fits)
";

const PLAN: &str = "\
dctms plan [MODEL] [options]      the memory envelope, before anything is loaded
dctms plan MODEL MODEL … [options]
                                  several models resident together, transients shared
dctms plan --diff OLD.json NEW.json [--json]

  --overlap               steps of different models may run at the same time
  --fit BYTES             the largest context that fits into so much
  --chat                  for a conversation, whose texts take heap as well
  --replan                with --chat: for one that may make larger plans
  --json                  the plan on standard output in place of the table
  -o, --output FILE       the plan into a file, beside the table
  --html FILE             the report: one page without network
  --explain               what each of the planner's choices saved; of a model that sees also
                          what a second unit for vision would do, as a prediction
  --second-unit PEAK:SHARE  that prediction for a unit of PEAK times the lanes' f32 peak that
                          takes SHARE of the bandwidth while both work (4:0.5; 0.01 to 1000
                          and to 0.99)
  --hash                  SHA-256 of the whole file in the plan (reads all of it)
";

const RUN: &str = "\
dctms run [MODEL] [options]       generate text; without a prompt, a conversation on standard input

Prompt (one of)
  -p, --prompt TEXT       a text
  -f, --file FILE         a text file
  --prompt-ids FILE       token ids, separated by white space or commas
  --image FILE            a picture before the text: PNG, JPEG, WebP or GIF (may be repeated);
                          in a conversation a line /image FILE, and /reset begins anew
  --prompts FILE.jsonl    several, answered together: a string or {\"prompt\": …} a line
  --requests FILE.jsonl   one after another, a line of JSON for each (- reads standard input):
                          {\"prompt\": …} or {\"messages\": …} with \"images\": [FILE, …],
                          \"max_tokens\", \"id\"; answers are lines of JSON, a refusal is one too

Generation
  -m MODEL                the model file, like the first word
  -n TOKENS               at most so many tokens (--max-output)
  --temp T                temperature; 0 (default) takes the likeliest token
  --top-k K --top-p P --min-p P --repeat-penalty R --seed S
  --system TEXT           a system message for the chat template
  --stop TEXT             ends the output before this text (may be repeated)
  --ignore-eos            end tokens are tokens like any other
  --raw                   no chat template
  --replan                raise a bound that a prompt or a conversation passes, if that fits
  --trace FILE            what every lane did when, for Perfetto or chrome://tracing
  --json                  one object on standard output in place of the text
  --logits-sha            answers to --requests carry the digest of their logits
";

const EVAL: &str = "\
dctms eval [MODEL] --perplexity FILE [options]

  --perplexity FILE       the text
  -c, --ctx-size N        tokens of a chunk (512)
  -m MODEL                the model file, like the first word
  --json                  one object in place of the line
  --prefill-chunk C       tokens of a step, here also rows of logits (64, at most 1024)
Ends with exit code 130, and without a figure, when it is interrupted.
";

const BENCH: &str = "\
dctms bench [MODEL] [options]     speed, latency and memory inside the envelope

  --prompt-tokens N       tokens of the prompt (512)
  --gen-tokens N          decode steps (128)
  --depth N               tokens of context before decoding (0)
  --repetitions N         (5)
  -m MODEL                the model file, like the first word
  --json                  one object in place of the table
  --compare OLD.json      ratios to an earlier report

  With --mmproj FILE: a prompt of N tokens of text and a picture, its tiles beside chunks of the
  prompt against one step after the other, in turns, with what the plan expects
  --tiles N               tiles of the picture (4)
";

const COMPILE: &str = "\
dctms compile MODEL.gguf -o MODEL.dctms     packed weights in a file that loads at once

  -o, --output FILE       the compiled model: every command takes it like the file it is made of
  -m MODEL                the model file, like the first word
";

const VERIFY: &str = "\
dctms verify PLAN.json [--model FILE [--mmproj FILE]]…

Checks every rule of a plan that comes from disk; with --model, also that it is a plan of that
model. Exit code 2 with the violations.
";

const DOCTOR: &str = "\
dctms doctor [options]            what this machine allows, and how fast its kernels are

  --machine-out FILE      the rates as a profile for --machine
  --lanes L               threads that work together (this machine's processors)
  --isa NAME              scalar, avx2, avx512 or amx (the best of this processor)
  --memory-limit BYTES    the limit that the profile states
";

const INSPECT: &str = "\
dctms inspect [MODEL] [--json]    metadata, tensors and types of a model file
";

const PACK: &str = "\
dctms pack FILE.csv [options]     places buffers (id,lower,upper,size) in one arena

  --capacity BYTES        any packing within it will do; exit code 3 when there is none
  --minimize              the smallest, also with --capacity
  --budget STEPS          of the search
  --svg FILE              a picture
";

const EXPERIMENT: &str = "\
dctms experiment --model FILE --out DIR [options]
dctms experiment --envelope --model FILE [--model FILE …] --out DIR

  Runs dynamic memory management, the paper's prototype and dctms side by side, with and without
  memory pressure, and reports. A program of its own (dctms-experiment, beside this one) does it:
  dctms experiment --help lists its options.
";

const SYNTH: &str = "\
dctms synth SHAPE MIX -o FILE [--seed N]    a model of random weights at a published shape

  --layers N              fewer layers (or more) than the published shape has

A shape that ends in -mmproj is a vision file. Shapes and mixes are named when one is wrong.
";

/// The help of a command, in two parts; `None` for a word that is none.
#[must_use]
pub fn of(command: &str) -> Option<[&'static str; 2]> {
    Some(match command {
        "plan" => [PLAN, PLANNING],
        "compile" => [COMPILE, PLANNING],
        "run" => [RUN, PLANNING],
        "eval" => [EVAL, PLANNING],
        "bench" => [BENCH, PLANNING],
        "verify" => [VERIFY, ""],
        "doctor" => [DOCTOR, ""],
        "inspect" => [INSPECT, ""],
        "pack" => [PACK, ""],
        "synth" => [SYNTH, ""],
        "experiment" => [EXPERIMENT, ""],
        "help" | "version" => [GENERAL, ""],
        _ => return None,
    })
}
