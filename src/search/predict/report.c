/* A prediction as one HTML file, which needs nothing else: no scripts, no fonts, no network.
 * Drawings are SVG; colors follow the reader's light or dark mode. */
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "base/text.h"
#include "plan/plan.h"
#include "search/predict/report.h"
#include "weft/version.h"

/* How much is drawn: classes with a timeline, columns of the memory curve, tensors. */
enum { DRAWN_LANES = 24, CURVE_PARTS = 600, DRAWN_TENSORS = 12 };

/* Cells of one phase and microbatch that follow each other; or transfers of one kind. */
typedef struct bar {
    int64_t begin, end;
    wefti_phase phase;
    int32_t micro;
    const char *kind; /* of transfers; NULL: cells */
    int32_t count;
} bar;

typedef struct bars {
    bar *bars;
    int64_t count, capacity;
} bars;

typedef struct report {
    const wefti_match_classes *classes;
    const wefti_predict_options *options;
    const wefti_predict_files *files;
    const weft_prediction *p;
    bars lane[DRAWN_LANES], moves[DRAWN_LANES]; /* cells, and transfers */
    /* Of the rank that needs most, in each part of the step: bytes alive, and the highest byte. */
    int64_t alive[CURVE_PARTS], highest[CURVE_PARTS];
    int64_t step; /* picoseconds */
    wefti_text text;
} report;

/* ---- collecting ---- */

static int32_t lane_of(const report *r, int32_t rank) {
    for (int32_t i = 0; i < r->p->class_count && i < DRAWN_LANES; i++)
        if (r->p->classes[i].rank == rank) return i;
    return -1;
}

static int32_t column_of(const report *r, int64_t at) {
    const int64_t column = (int64_t)((double)at / (double)r->step * CURVE_PARTS);
    return (int32_t)(column < CURVE_PARTS ? column : CURVE_PARTS - 1);
}

static void add_memory(report *r, const wefti_sim_span *s) {
    if (s->rank != r->p->peak_rank) return;
    for (int32_t c = column_of(r, s->begin); c <= column_of(r, s->end); c++) {
        if (s->step->alive_bytes > r->alive[c]) r->alive[c] = s->step->alive_bytes;
        if (s->step->used_bytes > r->highest[c]) r->highest[c] = s->step->used_bytes;
    }
}

/* Transfers that overlap are one bar: what matters is when the links are busy. */
static weft_status add_move(report *r, const wefti_sim_span *s) {
    const int32_t lane = lane_of(r, s->rank);
    const char *kind = wefti_transfer_kind_text(s->transfer->kind);
    if (lane < 0) return WEFT_OK;
    bars *b = &r->moves[lane];
    for (int64_t i = b->count - 1; i >= 0 && i >= b->count - 8; i--) {
        bar *x = &b->bars[i];
        if (strcmp(x->kind, kind) != 0 || s->begin > x->end + r->step / 1000 || s->end < x->begin)
            continue;
        if (s->begin < x->begin) x->begin = s->begin;
        if (s->end > x->end) x->end = s->end;
        x->count++;
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_GROW(b->bars, b->count, b->capacity));
    b->bars[b->count++] = (bar){.begin = s->begin, .end = s->end, .kind = kind, .count = 1};
    return WEFT_OK;
}

static weft_status add_span(void *context, const wefti_sim_span *s) {
    report *r = context;
    if (s->track == WEFTI_SPAN_TRANSFER) return add_move(r, s);
    if (s->track != WEFTI_SPAN_STEP) return WEFT_OK;
    add_memory(r, s);
    const int32_t lane = lane_of(r, s->rank);
    if (lane < 0 || s->step->kind != WEFTI_STEP_CALL) return WEFT_OK;
    bars *b = &r->lane[lane];
    bar *last = b->count ? &b->bars[b->count - 1] : NULL;
    if (last && last->phase == s->step->phase && last->micro == s->micro &&
        s->begin - last->end <= r->step / 1000) {
        last->end = s->end;
        return WEFT_OK;
    }
    WEFT_TRY(WEFT_GROW(b->bars, b->count, b->capacity));
    b->bars[b->count++] = (bar){s->begin, s->end, s->step->phase, s->micro, NULL, 1};
    return WEFT_OK;
}

/* ---- texts ---- */

void wefti_report_escaped(wefti_text *text, const char *from) {
    for (; *from; from++) {
        if (*from == '<')
            wefti_text_add(text, "&lt;");
        else if (*from == '&')
            wefti_text_add(text, "&amp;");
        else if (*from == '"')
            wefti_text_add(text, "&quot;");
        else
            wefti_text_add_bytes(text, from, 1);
    }
}

static double milliseconds(double seconds) {
    return seconds * 1e3;
}

/* Drawings stretch, and labels beside them do not: they can be read at every width. */
static const char style[] =
    ":root{--back:#fff;--text:#1d232a;--faint:#667;--line:#d5d9e0;--panel:#f5f6f8;"
    "--forward:#3b7dd8;--backward:#d9822b;--update:#3a9b62;--other:#8a8f98;--memory:#7a5cc8;"
    "--move:#b0418b;--limit:#c0392b}"
    "@media(prefers-color-scheme:dark){:root{--back:#15181c;--text:#e6e9ee;--faint:#9aa3af;"
    "--line:#343a43;--panel:#1e2228;--forward:#6aa5f5;--backward:#f0a356;--update:#5cc388;"
    "--other:#9aa0aa;--memory:#a38bec;--move:#dd7fc0;--limit:#ff7b6b}}"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:1100px;padding:16px;"
    "background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif}"
    "h1{font-size:1.4em;margin:.2em 0}h2{font-size:1.1em;margin:1.6em 0 .4em}"
    "h3{font-size:1em;margin:.9em 0 0}"
    "p{margin:.3em 0}.faint{color:var(--faint);font-size:.87em}"
    ".wide{overflow-x:auto;background:var(--panel);border:1px solid var(--line);"
    "border-radius:6px;padding:8px}svg{display:block;width:100%;min-width:320px}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:2px 10px 2px 0;text-align:right;white-space:nowrap}"
    "td:first-child,th:first-child,.words td:last-child,.words th:last-child{text-align:left}"
    ".names td:first-child,.words td:last-child{white-space:normal;overflow-wrap:anywhere}"
    ".words td:last-child{min-width:9em}.words td{vertical-align:top}"
    "@media(max-width:500px){td,th{padding-right:6px;font-size:.87em}}"
    ".bar{display:block;height:10px;border-radius:3px;background:var(--forward)}"
    ".facts{display:flex;flex-wrap:wrap;gap:8px;margin:12px 0}"
    ".facts div{background:var(--panel);border:1px solid var(--line);border-radius:6px;"
    "padding:6px 12px}.facts b{display:block;font-size:1.15em}"
    ".hosts{display:flex;flex-wrap:wrap;gap:6px}.host{border:1px solid var(--line);"
    "border-radius:4px;padding:3px;display:flex;flex-wrap:wrap;gap:2px;max-width:180px}"
    ".host span{flex-basis:100%;font-size:10px;line-height:1.2;color:var(--faint)}"
    ".host i{width:18px;height:18px;border-radius:3px;font:9px/18px sans-serif;"
    "text-align:center;color:#fff;font-style:normal}"
    ".plot{display:grid;grid-template-columns:5.6em 1fr;column-gap:8px;font-size:.8em;"
    "color:var(--faint)}.plot>span{text-align:right;white-space:nowrap;line-height:20px}"
    ".plot svg{min-width:0;height:20px}.plot .tall{height:160px}"
    ".plot .labels{display:flex;flex-direction:column;justify-content:space-between;"
    "line-height:1;height:160px}"
    ".plot .axis{display:flex;justify-content:space-between;border-top:1px solid var(--line)}"
    ".mark{color:var(--limit)}dl{display:grid;grid-template-columns:max-content 1fr;gap:0 12px;"
    "margin:.3em 0}dt{color:var(--faint)}dd{margin:0;overflow-wrap:anywhere}";

static void add_fact(report *r, const char *name, double value, const char *unit) {
    wefti_text_add(&r->text,
                   value < 1e4 ? "<div>%s<b>%.4g%s</b></div>" : "<div>%s<b>%.0f%s</b></div>", name,
                   value, unit);
}

static void add_bytes(report *r, const char *name, const char *bytes) {
    wefti_text_add(&r->text, "<div>%s<b>%s</b></div>", name, bytes);
}

static void add_tier(report *r, const char *name, int64_t kept, int64_t moved) {
    char bytes[32];
    if (kept) add_bytes(r, name, wefti_bytes_text(kept, bytes));
    if (moved) add_bytes(r, "copied in a step", wefti_bytes_text(moved, bytes));
}

static void add_term(report *r, const char *name, const char *text) {
    wefti_text_add(&r->text, "<dt>%s</dt><dd>", name);
    wefti_report_escaped(&r->text, text);
    wefti_text_add(&r->text, "</dd>");
}

static void add_disturbances(report *r) {
    const weft_disturbances *d = &r->options->disturbances;
    if (!d->slow_rank_count && !d->slow_link_count && !(d->fail_seconds > 0)) return;
    wefti_text_add(&r->text, "<dt>disturbed</dt><dd class=\"mark\">");
    const char *before = "";
    for (int i = 0; i < d->slow_rank_count; i++, before = ", ")
        wefti_text_add(&r->text, "%skernels of rank %d take %.4g times as long", before,
                       d->slow_ranks[i].rank, d->slow_ranks[i].factor);
    for (int i = 0; i < d->slow_link_count; i++, before = ", ")
        wefti_text_add(&r->text, "%sthe link between ranks %d and %d has %.4g of its speed", before,
                       d->slow_links[i].a, d->slow_links[i].b, 1 / d->slow_links[i].factor);
    if (d->fail_seconds > 0)
        wefti_text_add(&r->text, "%srank %d stops after %.4g s", before, d->failing,
                       d->fail_seconds);
    wefti_text_add(&r->text, "</dd>");
}

/* What was predicted: a page that is kept says so itself. */
static void add_subject(report *r) {
    char plan[64];
    const wefti_predict_files *f = r->files;
    (void)snprintf(plan, sizeof plan, "%d rank%s%s", r->p->ranks, r->p->ranks == 1 ? "" : "s",
                   f->search ? ", the plan of the joint search" : "");
    wefti_text_add(&r->text, "<dl>");
    if (f->title) add_term(r, "job", f->title);
    if (f->model) add_term(r, "model", f->model);
    wefti_text_add(&r->text, "<dt>plan</dt><dd>%s", plan);
    for (int a = 0; f->plan && a < f->plan->mesh.axes; a++) {
        wefti_text_add(&r->text, ", ");
        wefti_report_escaped(&r->text, f->plan->mesh.axis[a].name);
        wefti_text_add(&r->text, " = %d", f->plan->mesh.axis[a].size);
    }
    if (f->plan && f->plan->pipeline.stages > 1)
        wefti_text_add(&r->text, ", %d stages", f->plan->pipeline.stages);
    wefti_text_add(&r->text, "</dd>");
    add_term(r, "machine", r->options->machine->name);
    add_disturbances(r);
    add_term(r, "weft", weft_version());
    wefti_text_add(&r->text, "</dl>");
}

static void add_head(report *r) {
    const weft_prediction *p = r->p;
    char bytes[32];
    wefti_text_add(&r->text,
                   "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
                   "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                   "<meta name=\"color-scheme\" content=\"light dark\">"
                   "<link rel=\"icon\" href=\"data:,\"><title>Predicted step</title>"
                   "<style>%s</style></head><body><h1>Predicted step</h1>",
                   style);
    add_subject(r);
    wefti_text_add(&r->text, "<div class=\"facts\">");
    add_fact(r, p->stopped ? "ranks stop after" : "step", milliseconds(p->step_seconds), " ms");
    if (p->tokens_per_second > 0) add_fact(r, "tokens per second", p->tokens_per_second, "");
    if (p->mfu > 1)
        wefti_text_add(&r->text, "<div class=\"mark\">MFU above 100 %%<b>%.4g %%</b></div>",
                       100 * p->mfu);
    else if (p->mfu > 0)
        add_fact(r, "MFU", 100 * p->mfu, " %");
    wefti_text_add(&r->text, "<div>peak memory%s<b>%s</b></div>", p->fits ? "" : ", does not fit",
                   wefti_bytes_text(p->peak_bytes, bytes));
    add_tier(r, "in host memory", p->host_bytes, p->host_moved_bytes);
    add_tier(r, "on the disk", p->disk_bytes, p->disk_moved_bytes);
    add_tier(r, "on servers", p->server_bytes, p->server_moved_bytes);
    if (p->tier_seconds > 0) add_fact(r, "copies of tiers", milliseconds(p->tier_seconds), " ms");
    add_fact(r, "exposed communication", milliseconds(p->exposed_seconds), " ms");
    add_fact(r, "idle on average", milliseconds(p->bubble_seconds), " ms");
    wefti_text_add(&r->text, "</div>");
    if (p->mfu > 1)
        wefti_text_add(&r->text, "<p class=\"mark\">No step is faster than the processor: the peak "
                                 "in the machine file is too low, as if measured while the machine "
                                 "was busy. Measure it again.</p>");
}

static void add_causes(report *r) {
    const weft_prediction *p = r->p;
    wefti_text_add(&r->text,
                   "<h2>Time by cause</h2><p class=\"faint\">of the critical path, which ends on "
                   "rank %d</p><div class=\"wide\"><table style=\"width:100%%\">",
                   p->critical_rank);
    for (int i = 0; i < p->cause_count; i++) {
        const double part = 100 * p->causes[i].seconds / p->step_seconds;
        wefti_text_add(&r->text,
                       "<tr><td>%s</td><td>%.3f ms</td><td>%.1f %%</td><td style=\"width:50%%\">"
                       "<span class=\"bar\" style=\"width:%.2f%%\"></span></td></tr>",
                       p->causes[i].name, milliseconds(p->causes[i].seconds), part, part);
    }
    wefti_text_add(&r->text, "</table></div>");
}

static void add_bar(report *r, const bar *b, const char *color) {
    static const char *const phases[] = {"forward", "backward", "update", "other"};
    const double x = 1000 * ((double)b->begin / (double)r->step);
    const double width = 1000 * ((double)(b->end - b->begin) / (double)r->step);
    if (width < 0.05) return;
    wefti_text_add(&r->text,
                   "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"var(--%s)\" "
                   "fill-opacity=\"%.2f\"><title>",
                   x, b->kind ? 15 : 1, width, b->kind ? 4 : 13, color ? color : phases[b->phase],
                   b->micro % 2 ? 0.75 : 1.0);
    if (b->kind)
        wefti_text_add(&r->text, "%d %s", b->count, b->kind);
    else
        wefti_text_add(&r->text, "%s, microbatch %d", phases[b->phase], b->micro);
    wefti_text_add(&r->text, "</title></rect>");
}

static void add_lane(report *r, int32_t lane) {
    const weft_rank_prediction *c = &r->p->classes[lane];
    wefti_text_add(&r->text, "<span>rank %d", c->rank);
    if (c->count > 1) wefti_text_add(&r->text, " (+%d)", c->count - 1);
    wefti_text_add(&r->text,
                   "</span><svg viewBox=\"0 0 1000 20\" preserveAspectRatio=\"none\" role=\"img\" "
                   "aria-label=\"rank %d\">",
                   c->rank);
    for (int64_t i = 0; i < r->lane[lane].count; i++) add_bar(r, &r->lane[lane].bars[i], NULL);
    for (int64_t i = 0; i < r->moves[lane].count; i++) add_bar(r, &r->moves[lane].bars[i], "move");
    wefti_text_add(&r->text, "</svg>");
}

/* The time below a drawing. Few labels, so that they have room on a small screen. */
static void add_time_axis(report *r) {
    wefti_text_add(&r->text, "<span></span><div class=\"axis\">");
    for (int i = 0; i <= 2; i++)
        wefti_text_add(&r->text, "<span>%.4g ms</span>", milliseconds(r->p->step_seconds) * i / 2);
    wefti_text_add(&r->text, "</div>");
}

static void add_timeline(report *r) {
    const int32_t lanes = r->p->class_count < DRAWN_LANES ? r->p->class_count : DRAWN_LANES;
    wefti_text_add(
        &r->text,
        "<h2>Timeline</h2><p class=\"faint\"><span style=\"color:var(--forward)\">"
        "forward</span>, <span style=\"color:var(--backward)\">backward</span>, <span "
        "style=\"color:var(--update)\">update</span>, gray: other kernels; narrow, below them: "
        "<span style=\"color:var(--move)\">transfers</span>; one row for equal ranks</p>"
        "<div class=\"wide plot\">");
    for (int32_t i = 0; i < lanes; i++) add_lane(r, i);
    add_time_axis(r);
    wefti_text_add(&r->text, "</div>");
    if (r->p->class_count > DRAWN_LANES)
        wefti_text_add(&r->text, "<p class=\"faint\">and %d more classes of ranks</p>",
                       r->p->class_count - DRAWN_LANES);
}

static void add_curve(report *r, const int64_t *bytes, double top, const char *look) {
    int64_t before = 0;
    wefti_text_add(&r->text, "<path %s d=\"M0 160", look);
    for (int i = 0; i < CURVE_PARTS; i++) {
        if (bytes[i]) before = bytes[i]; /* within a step that began earlier */
        const double y = 160 - 160 * (double)before / top;
        wefti_text_add(&r->text, "L%.2f %.2fL%.2f %.2f", 1000.0 * i / CURVE_PARTS, y,
                       1000.0 * (i + 1) / CURVE_PARTS, y);
    }
    wefti_text_add(&r->text, "L1000 160Z\"/>");
}

/* The limit is drawn if the curve can still be seen below it. */
static void add_memory_curve(report *r) {
    enum { MOST_ROOM = 4 };
    const weft_prediction *p = r->p;
    const double peak = p->peak_bytes > 0 ? (double)p->peak_bytes : 1;
    const double limit = (double)p->device_bytes;
    const bool drawn = limit > 0 && limit <= MOST_ROOM * peak;
    const double top = 1.05 * (drawn && limit > peak ? limit : peak);
    char bytes[32];
    wefti_text_add(&r->text,
                   "<h2>Memory</h2><p class=\"faint\">the arena of rank %d: <span "
                   "style=\"color:var(--memory)\">bytes alive</span>, and behind them the highest "
                   "byte in use, at most %s",
                   p->peak_rank, wefti_bytes_text(p->peak_bytes, bytes));
    if (limit > 0)
        wefti_text_add(&r->text, "; <span class=\"mark\">limit of a device %s</span>%s",
                       wefti_bytes_text(p->device_bytes, bytes),
                       drawn ? "" : ", far above this drawing");
    wefti_text_add(&r->text, "</p><div class=\"wide plot\"><div class=\"labels\">");
    for (int i = 4; i >= 0; i--)
        wefti_text_add(&r->text, "<span>%s</span>",
                       i ? wefti_bytes_text((int64_t)(top * i / 4), bytes) : "0");
    wefti_text_add(&r->text, "</div><svg class=\"tall\" viewBox=\"0 0 1000 160\" "
                             "preserveAspectRatio=\"none\" role=\"img\" "
                             "aria-label=\"memory in use\">");
    add_curve(r, r->highest, top, "fill=\"var(--line)\"");
    add_curve(r, r->alive, top, "fill=\"var(--memory)\"");
    for (int i = 1; i < 4; i++)
        wefti_text_add(&r->text,
                       "<path d=\"M0 %dH1000\" stroke=\"var(--line)\" stroke-width=\".5\"/>",
                       40 * i);
    if (drawn)
        wefti_text_add(&r->text,
                       "<path d=\"M0 %.2fH1000\" stroke=\"var(--limit)\" stroke-width=\"2\" "
                       "stroke-dasharray=\"8 4\"><title>limit</title></path>",
                       160 - 160 * limit / top);
    wefti_text_add(&r->text, "</svg>");
    add_time_axis(r);
    wefti_text_add(&r->text, "</div>");
}

/* "h.11.mlp.c_fc.weight" as "h.*.mlp.c_fc.weight": tensors of cells that are alike. */
static void without_numbers(const char *name, char *out, size_t room) {
    size_t used = 0;
    for (const char *at = name; *at && used + 1 < room;) {
        const size_t digits = at == name || at[-1] == '.' ? strspn(at, "0123456789") : 0;
        if (digits && (at[digits] == '.' || !at[digits])) {
            out[used++] = '*';
            at += digits;
        } else {
            out[used++] = *at++;
        }
    }
    out[used] = 0;
}

static void add_largest(report *r) {
    const wefti_program *p = r->classes->programs[r->classes->class_of[r->p->peak_rank]];
    char bytes[32];
    wefti_text_add(
        &r->text,
        "<h2>Largest tensors at the peak</h2><div class=\"wide\"><table class=\"names\">");
    for (int32_t i = 0, drawn = 0; i < p->largest_count && drawn < DRAWN_TENSORS; i++) {
        char name[256], other[256];
        int32_t count = 0;
        without_numbers(p->largest[i].name, name, sizeof name);
        for (int32_t k = 0; k < p->largest_count; k++) {
            without_numbers(p->largest[k].name, other, sizeof other);
            if (p->largest[k].bytes != p->largest[i].bytes || strcmp(name, other) != 0) continue;
            if (k < i) break; /* an earlier line has them all */
            count++;
        }
        if (!count) continue;
        drawn++;
        wefti_text_add(&r->text, "<tr><td>");
        wefti_report_escaped(&r->text, count > 1 ? name : p->largest[i].name);
        wefti_text_add(&r->text, "</td><td>%s</td><td>",
                       wefti_bytes_text(p->largest[i].bytes, bytes));
        if (count > 1)
            wefti_text_add(&r->text, "%d of them: %s", count,
                           wefti_bytes_text(count * p->largest[i].bytes, bytes));
        wefti_text_add(&r->text, "</td></tr>");
    }
    wefti_text_add(&r->text, "</table></div>");
}

static void add_classes(report *r) {
    char bytes[32];
    wefti_text_add(&r->text,
                   "<h2>Ranks</h2><div class=\"wide\"><table><tr><th>rank</th><th>ranks</th><th>"
                   "stage</th><th>busy</th><th>exposed</th><th>idle</th><th>peak</th></tr>");
    for (int i = 0; i < r->p->class_count && i < 4 * DRAWN_LANES; i++) {
        const weft_rank_prediction *c = &r->p->classes[i];
        wefti_text_add(&r->text,
                       "<tr><td>%d</td><td>%d</td><td>%d</td><td>%.3f ms</td><td>%.3f ms</td><td>"
                       "%.3f ms</td><td>%s</td></tr>",
                       c->rank, c->count, c->stage, milliseconds(c->busy_seconds),
                       milliseconds(c->exposed_seconds), milliseconds(c->idle_seconds),
                       wefti_bytes_text(c->peak_bytes, bytes));
    }
    wefti_text_add(&r->text, "</table></div></body></html>\n");
}

/* ---- the file ---- */

/* Numbers of a page have a point, in every locale of the caller. */
static weft_status add_all(report *r, const wefti_simulation *s) {
    locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    WEFT_REQUIRE(plain, WEFT_E_NOMEM, "no memory to write the report");
    locale_t before = uselocale(plain);
    add_head(r);
    add_causes(r);
    add_timeline(r);
    add_memory_curve(r);
    add_largest(r);
    wefti_report_mesh(&r->text, r->files->plan, r->options->machine, r->p, s);
    wefti_report_alternatives(&r->text, r->files->search);
    add_classes(r);
    (void)uselocale(before);
    freelocale(plain);
    return WEFT_OK;
}

static weft_status write_all(report *r, const wefti_simulation *s) {
    WEFT_TRY(add_all(r, s));
    const int64_t bytes = r->text.used;
    char *data = wefti_text_take(&r->text);
    WEFT_REQUIRE(data, WEFT_E_NOMEM, "no memory to write the report");
    weft_status status = wefti_file_write(r->files->report, data, (size_t)bytes);
    wefti_free(data);
    return status < 0 ? wefti_prefix(status, "the report") : WEFT_OK;
}

weft_status wefti_predict_report(const wefti_match_classes *classes,
                                 const wefti_predict_options *options, const weft_prediction *p,
                                 const wefti_predict_files *files) {
    report *r;
    wefti_simulation *s;
    WEFT_NEW(r, report);
    *r = (report){.classes = classes,
                  .options = options,
                  .files = files,
                  .p = p,
                  .step = (int64_t)(p->step_seconds / WEFTI_PICOSECOND) + 1};
    wefti_simulate_options o = wefti_predict_simulation(options);
    o.span = add_span;
    o.context = r;
    weft_status status = wefti_simulate_classes(classes, &o, &s);
    if (status >= 0) {
        status = write_all(r, s);
        wefti_simulation_free(s);
    }
    for (int i = 0; i < DRAWN_LANES; i++) {
        wefti_free(r->lane[i].bars);
        wefti_free(r->moves[i].bars);
    }
    wefti_free(r);
    return status;
}
