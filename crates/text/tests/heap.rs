//! How much heap each part takes: none for tables, encoding and decoding, a stated bound for
//! templates. The figures are printed; the bounds are those that an envelope may count on.

mod common;

use common::{fixture, small_vocabulary};
use dctms_text::{
    ChatTemplate, Content, ControlTokens, Conversation, EncodeOptions, Ends, Facts,
    GenerationPrompt, LeadingSpace, Message, Scratch, SpecialText, StreamDecoder, TableLayout,
    Tokenizer, build,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the bytes of the thread that asks.
struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator with the arguments unchanged; the counters
// are plain thread-local cells without destructors, which allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.set(LIVE_BYTES.get() + layout.size() as isize);
        PEAK_BYTES.set(PEAK_BYTES.get().max(LIVE_BYTES.get()));
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get() - layout.size() as isize);
        // SAFETY: the pointer came from `alloc` above, that is from the system, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The result, the bytes that it keeps, the highest bytes on the way, and the allocations.
fn counted<T>(work: impl FnOnce() -> T) -> (T, usize, usize, usize) {
    let (live, count) = (LIVE_BYTES.get(), ALLOCATIONS.get());
    let peak_before = PEAK_BYTES.replace(live);
    let result = work();
    let (kept, peak) = (LIVE_BYTES.get() - live, PEAK_BYTES.get());
    PEAK_BYTES.set(peak.max(peak_before));
    (result, kept as usize, (peak - live) as usize, ALLOCATIONS.get() - count)
}

#[test]
fn tables_encoding_and_decoding_allocate_nothing() {
    for file in ["small_byte_pair.json", "small_pieces.json"] {
        let (mut source, _) = small_vocabulary(file);
        source.pre = Some("llama-bpe".into());
        let (layout, _, peak, _) =
            counted(|| TableLayout::new(Facts::measure(&source).expect("sound")));
        assert_eq!(peak, 0, "measuring");
        let mut table = vec![0; layout.len_bytes()];
        let (_, _, peak, _) = counted(|| build(&layout, &source, &mut table).expect("sound"));
        assert_eq!(peak, 0, "building");
        let kind = layout.facts().kind;
        let (mut scratch, kept, peak, _) = counted(|| Scratch::with_text_bytes_max(kind, 5000));
        assert_eq!((kept, peak), (Scratch::heap_bytes(kind, 5000), kept), "scratch");
        let tokenizer = Tokenizer::new(&layout, &table);
        let (mut ids, mut len_bytes) = ([0; 5000], 0);
        let text = format!("{} {}", fixture("texts.json"), "a".repeat(300));
        let text: String = text.chars().filter(|c| *c != '\\').take(4000).collect();
        let (_, _, peak, _) = counted(|| {
            let options = EncodeOptions { special_text: SpecialText::Parse, ends: Ends::None };
            let encoded = tokenizer
                .encode_into(text.as_bytes(), options, &mut scratch, &mut ids)
                .expect("fits");
            let mut decoder = StreamDecoder::new(ControlTokens::Shown, LeadingSpace::Kept);
            for &id in &ids[..encoded.token_count] {
                decoder.push(&tokenizer, id, &mut |text| len_bytes += text.len());
            }
            decoder.finish(&mut |text| len_bytes += text.len());
        });
        assert_eq!(peak, 0, "encoding and decoding");
        assert!(len_bytes >= text.len());
    }
}

#[test]
fn templates_take_a_bounded_heap() {
    let (mut source, _) = small_vocabulary("small_byte_pair.json");
    source.pre = Some("qwen2".into());
    let (layout, table) = source.tables();
    let tokenizer = Tokenizer::new(&layout, &table);
    let long = "word ".repeat(4000);
    let thought = format!("<think>{long}</think>{long}");
    let one = vec![Message::text("system", "Be brief."), Message::text("user", &long)];
    let two = vec![Message::text("user", &long), Message::text("assistant", &thought)];
    let turns = [Message::text("user", "Why?"), Message::text("assistant", "Because.")];
    let many: Vec<Message<'_>> = turns.iter().cycle().take(201).cloned().collect();
    let names = ["chatml_default_system", "qwen2_style", "qwen3_style", "gemma3_style"];
    for name in names.into_iter().chain(["llama3_style"]) {
        for messages in [&one, &two, &many] {
            check_template(&tokenizer, name, messages);
        }
    }
}

fn check_template(tokenizer: &Tokenizer<'_>, name: &str, messages: &[Message<'_>]) {
    let source = fixture(&format!("templates/{name}.jinja"));
    let content_bytes = messages.iter().map(|message| match &message.content {
        Content::Text(text) => text.len(),
        Content::None | Content::Parts(_) => 0,
    });
    let content_bytes: usize = content_bytes.sum();
    let usual = ChatTemplate::heap_bytes_usual(source.len(), messages.len(), content_bytes);
    let mut into_peak = 0;
    let (_, _, peak, allocations) = counted(|| {
        let (template, kept, compile_peak, _) =
            counted(|| ChatTemplate::new(Some(&source), tokenizer).expect("Jinja"));
        let conversation = || Conversation {
            messages,
            generation_prompt: GenerationPrompt::Added,
            variables: Vec::new(),
        };
        let (text, _, peak, _) = counted(|| template.render(&conversation()).expect("renders"));
        println!(
            "{name}, {} bytes: compiling {compile_peak}, keeping {kept}; rendering {} messages of \
             {content_bytes} bytes: {peak}",
            source.len(),
            messages.len(),
        );
        let mut out = vec![0; text.len()];
        let (len_bytes, _, rendering, _) =
            counted(|| template.render_into(&conversation(), &mut out).expect("renders"));
        into_peak = compile_peak.max(kept + rendering);
        assert_eq!(&out[..len_bytes], text.as_bytes());
    });
    let usual_into =
        ChatTemplate::heap_bytes_usual_into(source.len(), messages.len(), content_bytes);
    println!("{name}, into a buffer: {into_peak} of {usual_into}");
    assert!(into_peak <= usual_into, "{name}: {into_peak} of {usual_into} bytes");
    assert!(peak <= usual, "{name}: {peak} of {usual} bytes in {allocations} allocations");
}
