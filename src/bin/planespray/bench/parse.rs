//! Values of options.

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use planespray::topology::{HcaList, scan};

use super::api::{Fault, PlaneFault};
use super::outage::Act;

/// `65536`, `64K`, `1M`, `1G`; powers of 1024.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let wrong = || "a size is a number of bytes, also with K, M or G".to_owned();
    let digits = text.trim_end_matches(['K', 'M', 'G', 'k', 'm', 'g']);
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(wrong()),
    };
    let n: u64 = digits.parse().map_err(|_| wrong())?;
    n.checked_mul(1 << shift).ok_or_else(wrong)
}

/// Seconds, also with a fraction; 0.01 to a week.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(s) if (0.01..=604_800.0).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("a duration is in seconds, 0.01 to 604800".into()),
    }
}

/// `1gbit`, `500mbit`, `100kbit`: bits per second, powers of 1000.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let number = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &lower[number.len()..] {
        "kbit" | "k" => 1e3,
        "mbit" | "m" => 1e6,
        "gbit" | "g" => 1e9,
        _ => 0.0,
    };
    match number.parse::<f64>() {
        Ok(n) if (1e5..=1e12).contains(&(n * scale)) => Ok((n * scale) as u64),
        _ => Err("a rate is like 1gbit or 500mbit, 100kbit to 1000gbit".into()),
    }
}

/// `PLANE@TIME`, such as `0@2s`.
fn at(text: &str, fault: PlaneFault) -> Result<Act, String> {
    let wrong = || format!("{text} is not of the form PLANE@SECONDS, such as 0@2s");
    let (plane, at) = text.split_once('@').ok_or_else(wrong)?;
    Ok(Act { plane: plane.parse().map_err(|_| wrong())?, at: seconds(at)?, fault })
}

pub(super) fn cut(text: &str) -> Result<Act, String> {
    at(text, PlaneFault::Cut)
}

pub(super) fn cut_event(text: &str) -> Result<Act, String> {
    at(text, PlaneFault::CutWithEvent)
}

pub(super) fn heal(text: &str) -> Result<Act, String> {
    at(text, PlaneFault::Heal)
}

/// `loss=1%,dup=1%,reorder=1%,seed=N`.
pub(super) fn fault(text: &str) -> Result<Fault, String> {
    let mut fault = Fault { loss: 0.0, dup: 0.0, reorder: 0.0, seed: 1 };
    for part in text.split(',') {
        let (name, value) = part.split_once('=').ok_or_else(|| format!("{part} is not of the form name=value"))?;
        match name {
            "loss" => fault.loss = share(value)?,
            "dup" => fault.dup = share(value)?,
            "reorder" => fault.reorder = share(value)?,
            "seed" => fault.seed = value.parse().map_err(|_| format!("seed {value} is not a number"))?,
            _ => return Err(format!("{name} is no fault; there are loss, dup, reorder and seed")),
        }
    }
    Ok(fault)
}

/// `1%` or `0.01`, at most a half.
fn share(text: &str) -> Result<f64, String> {
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().map(|p| p / 100.0),
        None => text.parse(),
    };
    match number {
        Ok(share) if (0.0..=0.5).contains(&share) => Ok(share),
        _ => Err(format!("{text} is not a share from 0% to 50%")),
    }
}

/// An error line unless every name of the list is an RDMA device or an interface of this machine.
pub(super) fn devices(text: &str) -> Result<(), String> {
    let list: HcaList = text.parse().map_err(|e| format!("-d: {e}"))?;
    let devices = scan(Path::new("/")).unwrap_or_default();
    for entry in list.entries.iter().filter(|_| !list.exclude) {
        let device = devices.iter().any(|d| list.named(entry, &d.name));
        let interfaces = nix::ifaddrs::getifaddrs().map_err(|e| format!("the interfaces cannot be listed: {e}"))?;
        if !device && !interfaces.into_iter().any(|i| i.interface_name == entry.hca) {
            return Err(format!(
                "-d: there is no RDMA device and no interface {}; `planespray devices` and `ip link` list them",
                entry.hca
            ));
        }
    }
    Ok(())
}

/// An error line unless `addr` is an address of this machine.
pub(super) fn is_local(addr: IpAddr) -> Result<(), String> {
    match UdpSocket::bind((addr, 0)) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => {
            Err(format!("{addr} is not an address of this machine; `ip addr` lists those that are"))
        }
        Err(e) => Err(format!("{addr} cannot be used: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("64K"), Ok(65536));
        assert_eq!(size("1m"), Ok(1 << 20));
        assert_eq!(size("1G"), Ok(1 << 30));
        for wrong in ["", "K", "1KK", "-1", "1.5M", "99999999999999999999", "99999999999G", "1T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_and_seconds() {
        assert_eq!(share("1%"), Ok(0.01));
        assert_eq!(share("0.25"), Ok(0.25));
        for wrong in ["51%", "-1%", "x", "NaN", ""] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        assert!(seconds("inf").is_err() && seconds("0").is_err());
    }

    #[test]
    fn loopback_is_local() {
        assert!(is_local("127.0.0.9".parse().unwrap()).is_ok());
        assert_eq!(devices("lo"), Ok(()));
        assert!(devices("lo,nosuch0").unwrap_err().contains("no interface nosuch0"));
        assert!(devices("lo:x").unwrap_err().contains("port \"x\""));
    }
}
