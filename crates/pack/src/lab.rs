//! experiment
use crate::exact::*;
use crate::random::SplitMix64;
use crate::sections::Sections;
use std::time::Instant;

pub fn ranks(i: &Sections, kind: u32, r: &mut SplitMix64) -> Vec<u64> {
    let total: Vec<u64> =
        (0..i.count()).map(|s| i.members(s).iter().map(|&b| i.sizes[b as usize]).sum()).collect();
    (0..i.sizes.len())
        .map(|b| {
            let w = i.durations[b];
            let secs = (i.end[b] - i.first[b]) as u64;
            let t = i.span(b).map(|s| total[s]).max().unwrap();
            let base = match kind % 5 {
                0 => w as f64,
                1 => i.sizes[b] as f64,
                2 => (w as f64) * i.sizes[b] as f64,
                3 => t as f64,
                _ => secs as f64,
            };
            let noise = if kind < 5 { 1.0 } else { 0.5 + (r.below(1000) as f64) / 1000.0 };
            (base * noise * 16.0) as u64
        })
        .collect()
}

pub fn lab(path: &str, cap: u64, limit: f64, sel: u32) {
    let text = std::fs::read_to_string(path).unwrap();
    let table = crate::csv::read(&text).unwrap();
    let crate::Conflicts::Intervals(iv) = &table.problem.conflicts else { panic!() };
    let sizes: Vec<u64> = table.problem.buffers.iter().map(|b| b.size).collect();
    let n = sizes.len();
    let start = Instant::now();
    let inst = Sections::new(sizes.clone(), vec![1; n], vec![u64::MAX; n], iv);
    let load = (0..inst.count()).map(|s| inst.members(s).iter().map(|&b| sizes[b as usize]).sum::<u64>()).max().unwrap();
    let cap = if cap == 0 { load } else { cap };
    let mut s = Search::new(&inst, cap);
    let mut r = crate::random::SplitMix64::new(1);
    s.sel = sel;
    let mut k = 0;
    let mut lim = 300.0_f64.max(1.3 * n as f64);
    let res = loop {
        s.rank = ranks(&inst, k, &mut r);
        s.node_limit = s.nodes + lim as u64;
        match s.run() {
            Outcome::Found => break "FOUND",
            Outcome::Failed => break "INFEASIBLE",
            Outcome::Out => {}
        }
        k += 1;
        if k % 5 == 0 { lim *= 1.1; }
        if start.elapsed().as_secs_f64() > limit { break "out"; }
    };
    if res == "FOUND" {
        let a = crate::validate(&table.problem, &s.sky.lower).expect("valid");
        assert!(a <= cap);
    }
    println!("{} members {} sections {} cap {cap} load {load}: {res} runs {k} nodes {} hits {} steps {} {:.2}s", &path[path.len()-20..], inst.members.len(), inst.count(), s.nodes, s.hits, s.sky.steps, start.elapsed().as_secs_f64());
}

pub fn swo(path: &str, limit: f64, keyi: usize, bestfit: bool, mode: u32) {
    use crate::place::*;
    let text = std::fs::read_to_string(path).unwrap();
    let table = crate::csv::read(&text).unwrap();
    let p = &table.problem;
    let rel = crate::relation::Relation::new(p);
    let (bound, breadth) = crate::bound::quick(p, &rel);
    let start = Instant::now();
    let m = crate::portfolio::Measures::new(p, &rel, &breadth);
    let mut order = m.order(&rel, crate::portfolio::KEYS[keyi]);
    let n = order.len();
    let fit = if bestfit { Fit::Best } else { Fit::First };
    let mut placer = Placer::default();
    let mut r = SplitMix64::new(1);
    let mut best = u64::MAX;
    let mut best_order = order.clone();
    let mut it = 0;
    let mut first = 0;
    while start.elapsed().as_secs_f64() < limit {
        let mut off = vec![UNPLACED; n];
        let a = placer.place(&rel, &order, fit, u64::MAX, &mut off).unwrap();
        if it == 0 { first = a; }
        if a <= best {
            if a < best { println!("   it {it} arena {a} {:.4} {:.1}s", a as f64 / bound.bytes as f64, start.elapsed().as_secs_f64()); }
            best = a;
            best_order = order.clone();
            if a == bound.bytes { break; }
        } else if mode & 1 == 0 && r.below(10) == 0 {
            order = best_order.clone();
            it += 1;
            continue;
        }
        // violators
        let target = bound.bytes.max(best - (best - bound.bytes) * 1 / 4 - 1).min(best - 1);
        let mut prio: Vec<(f64, usize)> = vec![];
        let mut pos = vec![0; n];
        for (k, &b) in order.iter().enumerate() { pos[b] = k; }
        for (k, &b) in order.iter().enumerate() {
            let viol = off[b] + rel.sizes[b] > target;
            let kk = if viol {
                let u = 0.3 + (r.below(1000) as f64) / 1000.0 * 0.6;
                (k as f64) * u - 0.5
            } else { k as f64 };
            prio.push((kk, b));
        }
        prio.sort_by(|a, b| a.partial_cmp(b).unwrap());
        order = prio.into_iter().map(|x| x.1).collect();
        it += 1;
    }
    println!("{} swo key {keyi} best {bestfit} mode {mode}: first {first} best {best} {:.4} iters {it} steps {} {:.1}s", &path[path.len()-20..], best as f64 / bound.bytes as f64, placer.steps, start.elapsed().as_secs_f64());
}
