//! Sampling by sorting everything, in f64.

use crate::sample::SampleParameters;

/// The tokens that may be drawn, with their probabilities, best first.
pub fn distribution(
    logits: &[f32],
    parameters: &SampleParameters,
    history: &[u32],
) -> Vec<(u32, f64)> {
    let mut all: Vec<(u32, f64)> = Vec::new();
    for (id, &raw) in logits.iter().enumerate() {
        let id = id as u32;
        let count = history.iter().filter(|&&seen| seen == id).count();
        let mut logit = f64::from(raw);
        if count > 0 {
            let repeat = f64::from(parameters.repeat_penalty);
            logit = if raw > 0.0 { logit / repeat } else { logit * repeat };
            logit -= f64::from(parameters.presence_penalty);
            logit -= f64::from(parameters.frequency_penalty) * count as f64;
        }
        if logit > f64::NEG_INFINITY {
            all.push((id, logit.min(f64::from(f32::MAX))));
        }
    }
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if parameters.top_k > 0 {
        all.truncate(parameters.top_k as usize);
    }
    let best = all[0].1;
    let weight = |logit: f64, temperature: f64| ((logit - best) / temperature).exp();
    let total: f64 = all.iter().map(|c| weight(c.1, 1.0)).sum();
    let mut sum = 0.0;
    let within = |c: &&(u32, f64)| {
        let before = sum;
        sum += weight(c.1, 1.0);
        before < f64::from(parameters.top_p) * total || before == 0.0
    };
    let kept = all.iter().take_while(within).count();
    all.truncate(if parameters.top_p < 1.0 { kept } else { all.len() });
    all.retain(|c| weight(c.1, 1.0) >= f64::from(parameters.min_p));
    if parameters.temperature <= 0.0 {
        all.truncate(1);
        return vec![(all[0].0, 1.0)];
    }
    let temperature = f64::from(parameters.temperature);
    let total: f64 = all.iter().map(|c| weight(c.1, temperature)).sum();
    all.iter().map(|c| (c.0, weight(c.1, temperature) / total)).collect()
}
