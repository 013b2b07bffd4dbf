//! The command line of the simulation. `cargo xtask sim` calls it.

use std::process::ExitCode;

use watchkeeper_sim::mutant::{ALL, CatalogedMutant, named};
use watchkeeper_sim::report::{MUST_HAVE, totals};
use watchkeeper_sim::{Options, Report, run};

/// What to do.
enum Task {
    Seeds { count: u64, mutant: Option<&'static CatalogedMutant>, self_fencing: bool },
    One { seed: u64, trace: bool, mutant: Option<&'static CatalogedMutant> },
    Mutants,
}

const USAGE: &str = "usage: sim [--seeds N] [--seed S [--trace]] [--mutant NAME] [--no-self-fencing] | --mutants";

fn parse(words: &[String]) -> Result<Task, String> {
    let (mut seeds, mut seed, mut trace, mut mutant, mut self_fencing, mut all) = (100, None, false, None, true, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        let number = |text: &String| text.parse::<u64>().map_err(|_| format!("{text:?} is not a number"));
        match word.as_str() {
            "--seeds" => seeds = number(value()?)?,
            "--seed" => seed = Some(number(value()?)?),
            "--trace" => trace = true,
            "--mutants" => all = true,
            "--no-self-fencing" => self_fencing = false,
            "--mutant" => {
                let name = value()?;
                let names: Vec<_> = ALL.iter().map(|known| known.name).collect();
                mutant =
                    Some(named(name).ok_or_else(|| format!("no mutant {name:?}; there are: {}", names.join(", ")))?);
            }
            other => return Err(format!("unknown word {other:?}; {USAGE}")),
        }
    }
    Ok(match (all, seed) {
        (true, _) => Task::Mutants,
        (false, Some(seed)) => Task::One { seed, trace, mutant },
        (false, None) => Task::Seeds { count: seeds, mutant, self_fencing },
    })
}

fn main() -> ExitCode {
    // Handlers panic on purpose; their messages would drown everything else.
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.to_string();
        if !text.contains("on purpose") {
            eprintln!("{text}");
        }
    }));
    let words: Vec<_> = std::env::args().skip(1).collect();
    let good = match parse(&words) {
        Ok(Task::Seeds { count, mutant, self_fencing }) => seeds(count, mutant, self_fencing),
        Ok(Task::One { seed, trace, mutant }) => one(seed, trace, mutant),
        Ok(Task::Mutants) => mutants(),
        Err(cause) => {
            eprintln!("{cause}");
            return ExitCode::from(2);
        }
    };
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs many seeds on all cores, in the order of the seeds.
fn run_all(seeds: &[u64], options: impl Fn(u64) -> Options + Sync) -> Vec<Report> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(seeds.len().max(1));
    let next = std::sync::atomic::AtomicUsize::new(0);
    let reports = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let report = run(options(*seed));
                    reports.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(report);
                }
            });
        }
    });
    let mut reports = reports.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    reports.sort_by_key(|report| report.seed);
    reports
}

fn show(report: &Report, mutant: Option<&CatalogedMutant>) {
    println!("seed {} hash {:016x}", report.seed, report.hash);
    for violation in &report.violations {
        println!("  {violation}");
    }
    if !report.is_clean() {
        let mutant = mutant.map(|known| format!(" --mutant {}", known.name)).unwrap_or_default();
        println!("  reproduce: cargo xtask sim --seed {}{mutant} --trace", report.seed);
    }
}

fn seeds(count: u64, mutant: Option<&'static CatalogedMutant>, self_fencing: bool) -> bool {
    let began = std::time::Instant::now();
    let breakage = mutant.map(|known| known.breaks);
    let all: Vec<_> = (0..count).collect();
    let reports = run_all(&all, |seed| Options { breakage, self_fencing, ..Options::seed(seed) });
    let red: Vec<_> = reports.iter().filter(|report| !report.is_clean()).collect();
    red.iter().take(10).for_each(|report| show(report, mutant));
    let totals = totals(&reports);
    for (name, total) in &totals {
        println!("{total:>10} {name}");
    }
    let missing: Vec<_> =
        MUST_HAVE.into_iter().filter(|name| totals[name] == 0 && (self_fencing || *name != "deadline hits")).collect();
    if !missing.is_empty() {
        println!("never seen, so never tried: {}", missing.join(", "));
    }
    let unrepeatable = mutant.is_none().then(|| unrepeatable(&reports, self_fencing)).flatten();
    if let Some(seed) = unrepeatable {
        println!("seed {seed} gave another history the second time");
    }
    println!(
        "{} passed, {} failed in {:.1} s (seeds 0 to {})",
        reports.len() - red.len(),
        red.len(),
        began.elapsed().as_secs_f64(),
        count.saturating_sub(1)
    );
    red.is_empty() && missing.is_empty() && unrepeatable.is_none()
}

/// One of the first seeds that gives another history the second time.
fn unrepeatable(reports: &[Report], self_fencing: bool) -> Option<u64> {
    let again = reports.iter().take(3);
    let differs = |report: &&Report| run(Options { self_fencing, ..Options::seed(report.seed) }).hash != report.hash;
    again.into_iter().find(differs).map(|report| report.seed)
}

fn one(seed: u64, trace: bool, mutant: Option<&'static CatalogedMutant>) -> bool {
    let breakage = mutant.map(|known| known.breaks);
    let report = run(Options { trace, breakage, ..Options::seed(seed) });
    show(&report, mutant);
    for (name, count) in &report.counts {
        println!("{count:>10} {name}");
    }
    report.is_clean()
}

/// Runs every mutant with the seeds known to catch it: each must be caught.
fn mutants() -> bool {
    let mut escaped = 0;
    for known in ALL {
        let reports = run_all(known.seeds, |seed| Options { breakage: Some(known.breaks), ..Options::seed(seed) });
        let caught = reports.iter().find(|report| !report.is_clean());
        match caught {
            Some(report) => println!("caught  {:<26} seed {:<6} {}", known.name, report.seed, report.violations[0]),
            None => println!("ESCAPED {:<26} seeds {:?}", known.name, known.seeds),
        }
        escaped += usize::from(caught.is_none());
    }
    println!("{} passed, {escaped} failed", ALL.len() - escaped);
    escaped == 0
}
