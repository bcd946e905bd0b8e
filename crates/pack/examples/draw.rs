//! Packs a CSV file and prints the drawing: how the pictures under `docs/` are made.

fn main() {
    let path = std::env::args().nth(1).expect("a file");
    let text = std::fs::read_to_string(&path).expect("a readable file");
    let options = dctms_pack::PackOptions {
        drawing: dctms_pack::Drawing::Svg,
        ..dctms_pack::PackOptions::default()
    };
    let report = dctms_pack::pack_csv(&text, &options).expect("a packable problem");
    eprint!("{}", report.summary);
    print!("{}", report.svg.expect("a drawing was asked for"));
}
