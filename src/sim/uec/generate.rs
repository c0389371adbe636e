//! Traffic made by rule: permutations as the usual generator makes them, tornado, incast, all-to-all and rings.

use super::matrix::{FlowSpec, Matrix, Start};

/// A pattern of traffic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Each host sends to one other and receives from one: the same flows for a seed as the usual generator's.
    Permutation {
        /// From 1.
        seed: u32,
    },
    /// Host `i` sends to host `i + n/2`.
    Tornado,
    /// So many hosts, the last ones, send to host 0.
    Incast {
        /// How many send.
        senders: u32,
    },
    /// Host 0 sends to so many hosts.
    Outcast {
        /// How many receive.
        receivers: u32,
    },
    /// Each host sends to the next.
    Ring,
    /// Each host sends to each other.
    AllToAll,
}

impl Pattern {
    /// The flows of the pattern among `hosts` hosts, `bytes` each, all from the start.
    ///
    /// Numbers of senders and receivers are held at `hosts - 1`. At least two hosts are assumed.
    pub fn matrix(self, hosts: u32, bytes: u32) -> Matrix {
        let hosts = hosts.max(2);
        let pairs: Vec<(u32, u32)> = match self {
            Pattern::Permutation { seed } => permutation(hosts, seed),
            Pattern::Tornado => (0..hosts).map(|i| (i, (i + hosts / 2) % hosts)).collect(),
            Pattern::Incast { senders } => (hosts - senders.clamp(1, hosts - 1)..hosts).map(|i| (i, 0)).collect(),
            Pattern::Outcast { receivers } => (1..=receivers.clamp(1, hosts - 1)).map(|i| (0, i)).collect(),
            Pattern::Ring => (0..hosts).map(|i| (i, (i + 1) % hosts)).collect(),
            Pattern::AllToAll => (1..hosts).flat_map(|d| (0..hosts).map(move |i| (i, (i + d) % hosts))).collect(),
        };
        let flow = |(i, (from, to)): (usize, (u32, u32))| FlowSpec {
            from,
            to,
            id: i as u32 + 1,
            start: Start::At(0),
            bytes,
            when_sent: None,
            when_received: None,
        };
        Matrix { hosts, flows: pairs.into_iter().enumerate().map(flow).collect(), ..Matrix::default() }
    }
}

/// Senders and receivers are shuffled; who would send to itself swaps with its neighbour.
fn permutation(hosts: u32, seed: u32) -> Vec<(u32, u32)> {
    let mut random = Mersenne::new(seed);
    let mut from: Vec<u32> = (0..hosts).collect();
    let mut to = from.clone();
    random.shuffle(&mut from);
    random.shuffle(&mut to);
    let n = from.len();
    for i in 0..n {
        if from[i] == to[i] {
            to.swap(i, (i + 1) % n);
        }
    }
    from.into_iter().zip(to).collect()
}

/// The Mersenne Twister (MT19937), seeded and drawn from as Python's `random` does it.
struct Mersenne {
    state: [u32; 624],
    at: usize,
}

impl Mersenne {
    fn new(seed: u32) -> Mersenne {
        let mut s = [0u32; 624];
        s[0] = 19_650_218;
        for i in 1..624 {
            s[i] = 1_812_433_253u32.wrapping_mul(s[i - 1] ^ s[i - 1] >> 30).wrapping_add(i as u32);
        }
        let mut i = 1;
        for _ in 0..624 {
            s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30).wrapping_mul(1_664_525)).wrapping_add(seed);
            i += 1;
            if i == 624 {
                s[0] = s[623];
                i = 1;
            }
        }
        for _ in 0..623 {
            s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30).wrapping_mul(1_566_083_941)).wrapping_sub(i as u32);
            i += 1;
            if i == 624 {
                s[0] = s[623];
                i = 1;
            }
        }
        s[0] = 1 << 31;
        Mersenne { state: s, at: 624 }
    }

    fn next(&mut self) -> u32 {
        if self.at == 624 {
            for i in 0..624 {
                let y = self.state[i] & 1 << 31 | self.state[(i + 1) % 624] & !(1 << 31);
                let odd = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % 624] ^ y >> 1 ^ odd;
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        y ^ y >> 18
    }

    /// A number below `n`, which is at least 1.
    fn below(&mut self, n: u32) -> u32 {
        let bits = 32 - n.leading_zeros();
        loop {
            let r = self.next() >> (32 - bits);
            if r < n {
                return r;
            }
        }
    }

    fn shuffle(&mut self, items: &mut [u32]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u32 + 1) as usize;
            items.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_are_those_of_the_usual_generator() {
        let file = Matrix::parse(include_str!("../../../tests/fabric/perm128_8M_s1.cm")).expect("a good file");
        assert_eq!(Pattern::Permutation { seed: 1 }.matrix(128, 8 << 20), file);
        let tornado = Matrix::parse(include_str!("../../../tests/fabric/tornado128_8M.cm")).expect("a good file");
        assert_eq!(Pattern::Tornado.matrix(128, 8 << 20), tornado);
    }

    #[test]
    fn every_host_sends_once_and_receives_once_in_a_permutation() {
        for seed in 1..50 {
            let m = Pattern::Permutation { seed }.matrix(16, 1);
            let mut from: Vec<u32> = m.flows.iter().map(|f| f.from).collect();
            let mut to: Vec<u32> = m.flows.iter().map(|f| f.to).collect();
            from.sort_unstable();
            to.sort_unstable();
            assert!(from.into_iter().eq(0..16) && to.into_iter().eq(0..16));
            assert!(m.flows.iter().all(|f| f.from != f.to), "seed {seed}");
        }
    }

    #[test]
    fn other_patterns() {
        let ends = |p: Pattern| Vec::from_iter(p.matrix(4, 9).flows.iter().map(|f| (f.from, f.to)));
        assert_eq!(ends(Pattern::Incast { senders: 2 }), [(2, 0), (3, 0)]);
        assert_eq!(ends(Pattern::Outcast { receivers: 9 }), [(0, 1), (0, 2), (0, 3)]);
        assert_eq!(ends(Pattern::Ring), [(0, 1), (1, 2), (2, 3), (3, 0)]);
        assert_eq!(ends(Pattern::AllToAll).len(), 12);
        let text = Pattern::AllToAll.matrix(4, 9).to_string();
        assert_eq!(Matrix::parse(&text), Ok(Pattern::AllToAll.matrix(4, 9)));
    }
}
