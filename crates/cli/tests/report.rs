//! The HTML report: one file, nothing from elsewhere, nothing of the model's file as markup.

mod common;

use common::{Folder, code, errors, json, model, plan};

const LLAMA: &str = "llama-legacy-mixed.gguf";

fn page(folder: &Folder, model: &std::path::Path) -> String {
    let file = folder.file("report.html");
    let output = plan(model, &["--html", file.to_str().unwrap()]);
    assert_eq!(code(&output), 0, "{}", errors(&output));
    std::fs::read_to_string(file).unwrap()
}

/// The plan that a page carries.
fn carried(page: &str) -> serde_json::Value {
    let open = "id=\"plan-json\">";
    let start = page.find(open).unwrap() + open.len();
    let end = start + page[start..].find("</script>").unwrap();
    serde_json::from_str(&page[start..end]).unwrap()
}

#[test]
fn the_page_stands_alone_and_carries_the_plan() {
    let folder = Folder::new("report");
    let page = page(&folder, &model(LLAMA));
    for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'"));
    assert_eq!(carried(&page), json(&plan(&model(LLAMA), &["--json"])));
    // Each element that the script looks up is there once.
    for id in ["plan-json", "chart", "tip", "status", "live", "phase", "layer", "region", "search"]
    {
        assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
    }
}

#[test]
fn a_file_name_is_text() {
    let folder = Folder::new("markup");
    let hostile = folder.file("<script>alert(1)<_script>&.gguf");
    std::fs::copy(model(LLAMA), &hostile).unwrap();
    let page = page(&folder, &hostile);
    assert!(!page.contains("<script>alert"));
    assert!(page.contains("&lt;script&gt;alert(1)"));
    assert_eq!(carried(&page)["models"][0]["file"], "<script>alert(1)<_script>&.gguf");
}
