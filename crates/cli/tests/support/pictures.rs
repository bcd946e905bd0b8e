//! Pictures of any size in four formats, written without an encoder: as plainly as each format
//! allows.

/// Bits into bytes, the lowest or the highest first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Lowest,
    Highest,
}

struct Bits {
    order: Order,
    bytes: Vec<u8>,
    count: usize,
}

impl Bits {
    fn new(order: Order) -> Bits {
        Bits { order, bytes: Vec::new(), count: 0 }
    }

    fn put(&mut self, value: u32, bits: u32) {
        for index in 0..bits {
            if self.count.is_multiple_of(8) {
                self.bytes.push(0);
            }
            let (from, to) = match self.order {
                Order::Lowest => (index, self.count % 8),
                Order::Highest => (bits - 1 - index, 7 - self.count % 8),
            };
            *self.bytes.last_mut().expect("one") |= ((value >> from & 1) as u8) << to;
            self.count += 1;
        }
    }
}

/// A grey PNG with a slope in it, its data stored as it is.
pub fn png(width: usize, height: usize) -> Vec<u8> {
    let row = |y: usize| std::iter::once(0).chain((0..width).map(move |x| (3 * x + 5 * y) as u8));
    let raw: Vec<u8> = (0..height).flat_map(row).collect();
    let (a, b) = raw.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65521;
        (a, (b + a) % 65521)
    });
    let mut data = vec![0x78, 0x01];
    let blocks = raw.chunks(usize::from(u16::MAX));
    let last = blocks.len() - 1;
    for (index, block) in blocks.enumerate() {
        let len = block.len() as u16;
        data.push(u8::from(index == last));
        data.extend([len.to_le_bytes(), (!len).to_le_bytes()].concat());
        data.extend(block);
    }
    data.extend((b << 16 | a).to_be_bytes());
    let [width, height] = [width, height].map(|edge| (edge as u32).to_be_bytes());
    let header = [&width[..], &height, &[8, 0, 0, 0, 0]].concat();
    let chunks = [(b"IHDR", header), (b"IDAT", data), (b"IEND", Vec::new())];
    let chunk = |(kind, data): (&[u8; 4], Vec<u8>)| {
        let named = [&kind[..], &data].concat();
        let crc = named.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0xedb8_8320 * (crc & 1)))
        });
        [&(data.len() as u32).to_be_bytes()[..], &named, &(!crc).to_be_bytes()].concat()
    };
    let signature = b"\x89PNG\r\n\x1a\n".to_vec();
    std::iter::once(signature).chain(chunks.map(chunk)).flatten().collect()
}

/// A grey GIF with a slope in it. The table of words is cleared before a code needs a tenth bit.
pub fn gif(width: usize, height: usize) -> Vec<u8> {
    let [low, high] = [width, height].map(|edge| (edge as u16).to_le_bytes());
    let palette: Vec<u8> = (0..=255).flat_map(|grey| [grey; 3]).collect();
    let image = [&[0x2c, 0, 0, 0, 0][..], &low, &high, &[0, 8]].concat();
    let mut bits = Bits::new(Order::Lowest);
    for at in 0..width * height {
        if at % 254 == 0 {
            bits.put(256, 9);
        }
        bits.put(((3 * (at % width) + 5 * (at / width)) % 256) as u32, 9);
    }
    bits.put(257, 9);
    let mut bytes = [&b"GIF89a"[..], &low, &high, &[0xf7, 0, 0], &palette, &image].concat();
    for block in bits.bytes.chunks(255) {
        bytes.push(block.len() as u8);
        bytes.extend(block);
    }
    bytes.extend([0, 0x3b]);
    bytes
}

/// A lossless WebP of two greens in diagonal stripes.
pub fn webp(width: usize, height: usize) -> Vec<u8> {
    let mut bits = Bits::new(Order::Lowest);
    bits.put(0x2f, 8);
    // Width and height less one, no alpha, version 0; no transform, cache of colours or groups.
    for (value, count) in [(width as u32 - 1, 14), (height as u32 - 1, 14), (0, 4), (0, 3)] {
        bits.put(value, count);
    }
    // Green is one of two symbols, of a bit each; the others one, without bits.
    [(1, 1), (1, 1), (1, 1), (40, 8), (200, 8)].into_iter().for_each(|(v, n)| bits.put(v, n));
    for symbol in [90, 150, 255, 0] {
        [(1, 1), (0, 1), (1, 1), (symbol, 8)].into_iter().for_each(|(v, n)| bits.put(v, n));
    }
    for at in 0..width * height {
        bits.put(((at % width + at / width) / 3 % 2) as u32, 1);
    }
    let mut bytes = bits.bytes;
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    let len = bytes.len() as u32;
    let (riff, chunk) = ((len + 12).to_le_bytes(), len.to_le_bytes());
    [&b"RIFF"[..], &riff, b"WEBP", b"VP8L", &chunk, &bytes].concat()
}

/// A grey baseline JPEG of squares of 8 pixels in two brightnesses.
pub fn jpeg(width: usize, height: usize) -> Vec<u8> {
    let [wide, high] = [width, height].map(|edge| (edge as u16).to_be_bytes());
    let segment = |kind: u8, body: &[u8]| {
        [&[0xff, kind][..], &(body.len() as u16 + 2).to_be_bytes(), body].concat()
    };
    let frame = [&[8][..], &high, &wide, &[1, 1, 0x11, 0]].concat();
    // Differences of no bit are 0, of five bits 10; there is only the end of a block, 0.
    let counts = |ones: u8, twos: u8| [&[ones, twos][..], &[0; 14]].concat();
    let tables = [&[0x00][..], &counts(1, 1), &[0, 5], &[0x10], &counts(1, 0), &[0]].concat();
    let mut bits = Bits::new(Order::Highest);
    let columns = width.div_ceil(8);
    let mut before = 0;
    for block in 0..columns * height.div_ceil(8) {
        let bright = (block % columns + block / columns) % 2;
        match (before, bright) {
            (0, 1) => bits.put(0b10_11000, 7),
            (1, 0) => bits.put(0b10_00111, 7),
            _ => bits.put(0, 1),
        }
        bits.put(0, 1);
        before = bright;
    }
    bits.put(u32::MAX, 7);
    let data = bits.bytes.iter().flat_map(|byte| match byte {
        0xff => vec![0xff, 0],
        byte => vec![*byte],
    });
    let head = [
        vec![0xff, 0xd8],
        segment(0xdb, &[&[0][..], &[16; 64]].concat()),
        segment(0xc0, &frame),
        segment(0xc4, &tables),
        segment(0xda, &[1, 1, 0, 0, 63, 0]),
    ];
    head.concat().into_iter().chain(data).chain([0xff, 0xd9]).collect()
}
