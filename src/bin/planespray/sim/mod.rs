//! `planespray sim`: policies compared over simulated planes, or the engine itself over planes that fail.

mod args;
mod report;
mod scenario;

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use args::Plan;
pub(crate) use args::{Args, Wanted};
use planespray::sim::uec::run;

use crate::say::say;

/// Exit code for flows that were not done when the simulated time was over.
const UNFINISHED: u8 = 1;

/// Runs what is wanted.
pub(crate) fn execute(wanted: &Wanted) -> ExitCode {
    match wanted {
        Wanted::Policies(plan) => compare(plan),
        Wanted::Scenario(plan) => scenario::execute(plan),
    }
}

/// Runs all seeds of a plan, one JSON object or line each.
fn compare(plan: &Plan) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let mut out = match report::Sink::open(plan.json.as_deref()) {
        Ok(out) => out,
        Err(what) => {
            say(format_args!("{what}"));
            return ExitCode::FAILURE;
        }
    };
    for seed in plan.seeds.clone() {
        let scenario = plan.scenario(seed);
        let started = Instant::now();
        let outcome = match run(&scenario, seed) {
            Ok(outcome) => outcome,
            Err(e) => {
                say(format_args!("{e}"));
                return ExitCode::from(crate::USAGE);
            }
        };
        let seconds = started.elapsed().as_secs_f64();
        if plan.json.as_deref() != Some("-") {
            println!("{}", report::line(&outcome));
        }
        if outcome.unfinished() > 0 {
            say(format_args!(
                "seed {seed}: {} flows were not done after {} ms of simulated time",
                outcome.unfinished(),
                plan.limit_ms
            ));
            code = ExitCode::from(UNFINISHED);
        }
        if let Err(e) = out.write(&report::json(&outcome, seconds)) {
            say(format_args!("cannot write the report: {e}"));
            return ExitCode::FAILURE;
        }
    }
    let _ = std::io::stdout().flush();
    code
}
