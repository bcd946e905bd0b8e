//! The paper's experiment (§3.6, §4) as a program that can be stopped and goes on.
//!
//! | module | holds |
//! |---|---|
//! | `prompts` | the five prompts, from a data file |
//! | `child` | a system as a process: started, asked, timed |
//! | `condition`, `group` | what surrounds it: neighbours, memory control groups |
//! | `watch`, `series` | a process from outside: peak, faults, resident set every 10 ms |
//! | `protocol`, `turns` | the order of calls |
//! | `results`, `lock` | what is on disk, and going on; one experiment at a time |
//! | `outcome`, `settings` | how it ends; what calls are comparable under |
//! | `compiled` | the files that systems map |
//! | `systems`, `identity` | the words that start systems; which program and which model it was |
//! | `record` | a call as a line |
//! | `statistics`, `tables` | means, spreads, bootstrap; rows and differences |
//! | `plot`, `report` | SVG and PNG from one list of shapes; the page |
//! | `envelope` | predicted against measured memory |
//!
//! Believes what systems print and what `/proc` says. It links no engine: every system is a
//! process, the product too.

#![forbid(unsafe_code)]

pub mod child;
pub mod compiled;
pub mod condition;
pub mod envelope;
pub mod group;
pub mod identity;
pub mod lock;
pub mod machine;
pub mod options;
pub mod outcome;
pub mod plot;
pub mod progress;
pub mod prompts;
pub mod protocol;
pub mod record;
pub mod report;
pub mod results;
pub mod series;
pub mod settings;
pub mod statistics;
pub mod systems;
pub mod tables;
pub mod turns;
pub mod watch;
