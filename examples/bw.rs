//! Bandwidth between two fabrics on this machine, over two planes of the loopback interface, with several
//! messages under way at once; then what each plane carried.
//!
//! `cargo run --release --example bw [BYTES] [MESSAGES]`. `planespray bench` measures better: in two processes.

use std::collections::VecDeque;
use std::error::Error;
use std::time::{Duration, Instant};

use planespray::{Buffer, Fabric, FabricConfig, JobKey, Outcome, Pending, SendOptions};

type Any = Box<dyn Error + Send + Sync>;

/// No wait here is longer.
const LIMIT: Duration = Duration::from_secs(10);
/// Messages under way at once.
const DEPTH: usize = 16;

fn main() -> Result<(), Any> {
    let mut args = std::env::args().skip(1);
    let size: usize = args.next().map_or(Ok(1 << 20), |a| a.parse())?;
    let messages: usize = args.next().map_or(Ok(2000), |a| a.parse())?;

    let key = JobKey::generate()?;
    let there = open(&key, ["127.0.0.2", "127.0.1.2"])?;
    let here = open(&key, ["127.0.0.1", "127.0.1.1"])?;
    let listener = there.listen("127.0.0.2:0".parse()?)?;
    let addr = listener.local_addr();

    let receiver = std::thread::spawn(move || -> Result<u64, Any> {
        let connection = listener.accept(LIMIT)?;
        let (mut waiting, mut posted, mut bytes) = (VecDeque::<Pending>::new(), 0, 0);
        while posted < messages.min(DEPTH) {
            waiting.push_back(connection.receive(0, there.alloc(size)?)?);
            posted += 1;
        }
        while let Some(mut oldest) = waiting.pop_front() {
            let buffer = done(oldest.wait(LIMIT))?;
            bytes += buffer.len() as u64;
            if posted < messages {
                waiting.push_back(connection.receive(0, buffer)?);
                posted += 1;
            }
        }
        connection.close(LIMIT);
        Ok(bytes)
    });

    let connection = here.connect(addr, LIMIT)?;
    let start = Instant::now();
    let mut sending = VecDeque::<Pending>::new();
    for message in 0..messages {
        let mut buffer = if sending.len() < DEPTH {
            here.alloc(size)?
        } else {
            let mut oldest = sending.pop_front().ok_or("nothing is under way")?;
            done(oldest.wait(LIMIT))?
        };
        if let Some(first) = buffer.first_mut() {
            *first = message as u8;
        }
        sending.push_back(connection.send(SendOptions::default(), buffer, size)?);
    }
    for mut pending in sending {
        done(pending.wait(LIMIT))?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let stats = here.stats();
    connection.close(LIMIT);
    let bytes = receiver.join().map_err(|_| "the receiver panicked")??;

    println!("{messages} messages of {size} bytes: {:.2} Gb/s", bytes as f64 * 8.0 / 1e9 / seconds);
    for plane in &stats.planes {
        let share = plane.share.map_or("-".to_owned(), |s| format!("{:.1} %", 100.0 * s));
        println!("plane {} ({}): {} bytes, {share}", plane.plane, plane.addr, plane.bytes);
    }
    Ok(())
}

fn open(key: &JobKey, planes: [&str; 2]) -> Result<Fabric, Any> {
    let planes = planes.iter().map(|p| p.parse()).collect::<Result<_, _>>()?;
    Ok(Fabric::open(&FabricConfig { planes, key: Some(key.clone()), ..Default::default() })?)
}

/// The buffer of an operation that went well.
fn done(outcome: Outcome) -> Result<Buffer, Any> {
    outcome.result?;
    outcome.buffer.ok_or_else(|| "the operation kept its buffer".into())
}
