fn main() {
    let mut args = std::env::args().skip(1);
    let cap: u64 = args.next().unwrap().parse().unwrap();
    let limit: f64 = args.next().unwrap().parse().unwrap();
    let sel: u32 = args.next().unwrap().parse().unwrap();
    for path in args {
        dctms_pack::lab::lab(&path, cap, limit, sel);
    }
}
