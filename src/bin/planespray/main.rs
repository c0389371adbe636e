//! The `planespray` command.
#![forbid(unsafe_code)]

mod bench;
mod devices;
mod qualify;
mod say;
mod sim;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// Sprays messages over rails and planes in RoCEv2 packets.
#[derive(Parser)]
#[command(name = "planespray", version)]
struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Measures bandwidth or latency, and checks every byte.
    ///
    /// Without a host both ends run here, as two processes. With --server it waits for one client; with a
    /// host it is the client.
    Bench(Box<bench::Args>),
    /// Lists RDMA devices, their ports and addresses, and says which engine runs over which of them, and why.
    Devices(devices::Args),
    /// Measures RDMA devices: whether nothing is written once a queue pair is gone, what calls cost, what can be steered and
    /// seen, and how many lanes a port needs. Says what each means, and keeps whether a device is proven.
    ///
    /// Exit code 0: all that is needed was proven; 1: not; 2: the options are wrong.
    Qualify(qualify::Args),
    /// Simulates flows over planes of switches under a balancing policy, or the engine itself over planes that fail.
    Sim(Box<sim::Args>),
}

/// Exit code for options that are unknown or contradict each other.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(e) => match e.kind() {
            ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => e.exit(),
            _ => return usage("bench", first_line(&e.to_string())),
        },
    };
    say::listen();
    match command.what {
        What::Bench(args) => match args.resolve() {
            Ok(role) => bench::run(role),
            Err(what) => usage("bench", &what),
        },
        What::Devices(args) => match devices::run(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failed("devices", failure),
        },
        What::Qualify(args) => match qualify::run(&args) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(failure) => failed("qualify", failure),
        },
        What::Sim(args) => match args.resolve() {
            Ok(plan) => sim::execute(&plan),
            Err(what) => usage("sim", &what),
        },
    }
}

fn failed(command: &str, failure: devices::Failure) -> ExitCode {
    match failure {
        devices::Failure::Usage(what) => usage(command, &what),
        devices::Failure::System(what) => {
            say::say(what);
            ExitCode::FAILURE
        }
    }
}

fn usage(command: &str, what: &str) -> ExitCode {
    say::say(format_args!("{what}; see `planespray {command} --help`"));
    ExitCode::from(USAGE)
}

/// Clap's message without its tips and usage, which would make several lines of it.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").trim_end_matches(':')
}
