//! Plots against recorded ones, byte for byte: a change of drawing is a change that is seen.
//!
//! `UPDATE_GOLDENS=1 cargo test -p dctms-experiment --test plots` records them anew.

use std::path::Path;

use dctms_experiment::plot::charts::{Guide, distributions, levels, lines, points};
use dctms_experiment::plot::{Figure, png, svg};

fn figures() -> Vec<(&'static str, Figure)> {
    let named = |name: &str, values: Vec<f64>| (name.to_string(), values);
    let ramp = |from: f64, step: f64| (0..40).map(|i| from + step * f64::from(i)).collect();
    let groups = vec![
        ("P1".to_string(), vec![named("one & only", ramp(10.0, 0.5)), named("b", ramp(20.0, 1.0))]),
        ("P2".to_string(), vec![named("b", vec![300.0, 310.0, 290.0])]),
    ];
    let line = |name: &str, slope: f64| {
        (name.to_string(), (0..20).map(|i| (f64::from(i), slope * f64::from(i))).collect())
    };
    let series: Vec<(String, Vec<(f64, f64)>)> = vec![line("a", 1.0), line("b", 2.5)];
    let limits = [("M_max".to_string(), 40.0)];
    let sizes = vec![("m".to_string(), vec![(100.0, 99.0), (1000.0, 990.0), (4000.0, 3999.0)])];
    let spread = |shift: f64| {
        let names = ["dynamic", "dctms"];
        names.iter().map(|name| (name.to_string(), 0.1 + shift)).collect::<Vec<_>>()
    };
    let long = |name: &str, shift: f64| (name.to_string(), spread(shift));
    let by: Vec<_> = (0..3)
        .flat_map(|it| [long("none", 0.1 * f64::from(it)), long("group-0.9-dynamic × 2", 0.3)])
        .collect();
    vec![
        ("levels", levels("Spread × 2", "CV", &by)),
        ("distributions", distributions("Latency <ms>", "ms", &groups)),
        ("lines", lines("Resident set", ("s", "MiB"), &series, &limits)),
        ("points", points("Peak against M_max", ("a", "b"), &sizes, Guide::Equality)),
        ("empty", points("Nothing", ("a", "b"), &[], Guide::None)),
    ]
}

#[test]
fn plots_are_as_recorded() {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens");
    for (name, figure) in figures() {
        for (end, bytes) in [("svg", svg(&figure).into_bytes()), ("png", png(&figure))] {
            let path = goldens.join(format!("{name}.{end}"));
            if std::env::var_os("UPDATE_GOLDENS").is_some() {
                std::fs::write(&path, &bytes).unwrap();
            }
            let golden = std::fs::read(&path).unwrap();
            assert!(golden == bytes, "{} differs: see the file's head", path.display());
        }
    }
}

#[test]
fn a_picture_shows_what_the_drawing_says() {
    let figure = &figures()[2].1;
    let decoder = png::Decoder::new(std::io::Cursor::new(png(figure)));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), (1920, 840));
    let has = |colour: [u8; 3]| pixels.chunks_exact(3).filter(|pixel| **pixel == colour).count();
    assert!(has([0, 114, 178]) > 500, "the first series");
    assert!(has([230, 159, 0]) > 500, "the second series");
    assert!(has([246, 176, 184]) > 5000, "the limit");
    assert!(has([40, 40, 46]) > 2000, "axes and words");
}
