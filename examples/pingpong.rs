//! Half a round trip between two fabrics on this machine, over two planes of the loopback interface.
//!
//! `cargo run --release --example pingpong [BYTES] [ROUNDS]`

use std::error::Error;
use std::time::{Duration, Instant};

use planespray::{Buffer, Class, Fabric, FabricConfig, JobKey, Outcome, SendOptions, Wait};

type Any = Box<dyn Error + Send + Sync>;

/// No wait here is longer.
const LIMIT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Any> {
    let mut args = std::env::args().skip(1);
    let size: usize = args.next().map_or(Ok(8), |a| a.parse())?;
    let rounds: usize = args.next().map_or(Ok(10_000), |a| a.parse())?;
    let options = SendOptions { class: Class::Latency, ..Default::default() };

    let key = JobKey::generate()?;
    let there = open(&key, ["127.0.0.2", "127.0.1.2"])?;
    let here = open(&key, ["127.0.0.1", "127.0.1.1"])?;
    let listener = there.listen("127.0.0.2:0".parse()?)?;
    let addr = listener.local_addr();

    // The other end sends every message back.
    let echo = std::thread::spawn(move || -> Result<(), Any> {
        let connection = listener.accept(LIMIT)?;
        let mut buffer = there.alloc(size)?;
        for _ in 0..rounds {
            buffer = done(connection.receive(0, buffer)?.wait(LIMIT))?;
            buffer = done(connection.send(options, buffer, size)?.wait(LIMIT))?;
        }
        connection.close(LIMIT);
        Ok(())
    });

    let connection = here.connect(addr, LIMIT)?;
    let (mut out, mut back) = (here.alloc(size)?, here.alloc(size)?);
    let mut halves = Vec::with_capacity(rounds);
    for round in 0..rounds {
        out.fill(round as u8);
        let start = Instant::now();
        // The receive is there before the message leaves, so the answer finds its place.
        let mut receive = connection.receive(0, back)?;
        let mut send = connection.send(options, out, size)?;
        back = done(receive.wait(LIMIT))?;
        halves.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
        out = done(send.wait(LIMIT))?;
        if back[..] != out[..] {
            return Err("the answer is not what was sent".into());
        }
    }
    connection.close(LIMIT);
    echo.join().map_err(|_| "the other end panicked")??;

    halves.sort_by(f64::total_cmp);
    let at =
        |share: f64| halves.get((halves.len().saturating_sub(1) as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    println!("{size} bytes, {rounds} rounds, half a round trip: p50 {:.2} us, p99 {:.2} us", at(0.5), at(0.99));
    Ok(())
}

fn open(key: &JobKey, planes: [&str; 2]) -> Result<Fabric, Any> {
    let planes = planes.iter().map(|p| p.parse()).collect::<Result<_, _>>()?;
    Ok(Fabric::open(&FabricConfig { planes, key: Some(key.clone()), wait: Wait::Busy, ..Default::default() })?)
}

/// The buffer of an operation that went well.
fn done(outcome: Outcome) -> Result<Buffer, Any> {
    outcome.result?;
    outcome.buffer.ok_or_else(|| "the operation kept its buffer".into())
}
