fn main() {
    let mut args = std::env::args().skip(1);
    let limit: f64 = args.next().unwrap().parse().unwrap();
    let keyi: usize = args.next().unwrap().parse().unwrap();
    let bf: u32 = args.next().unwrap().parse().unwrap();
    let mode: u32 = args.next().unwrap().parse().unwrap();
    for path in args {
        dctms_pack::lab::swo(&path, limit, keyi, bf > 0, mode);
    }
}
