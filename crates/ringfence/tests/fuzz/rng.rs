//! Random numbers that come again: xorshift64*, seeded through splitmix64 so that near seeds lead far apart.

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64, case: u64) -> Self {
        let mut state = seed
            .wrapping_add(case.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The one state that xorshift never leaves.
        Rng((state ^ (state >> 31)).max(1))
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `bound`, which is above zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

#[test]
fn the_same_seed_gives_the_same_numbers_and_another_gives_others() {
    let numbers = |seed, case| -> Vec<u64> {
        let mut rng = Rng::new(seed, case);
        (0..8).map(|_| rng.next()).collect()
    };
    assert_eq!(numbers(1, 2), numbers(1, 2));
    assert_ne!(numbers(1, 2), numbers(1, 3));
    assert_ne!(numbers(1, 2), numbers(2, 2));
}
