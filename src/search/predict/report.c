/* A prediction as one HTML file, which needs nothing else: no scripts, no fonts, no network.
 * Drawings are SVG; colors follow the reader's light or dark mode. */
#include <locale.h>
#include <string.h>

#include "base/io.h"
#include "base/text.h"
#include "search/predict/report.h"

/* How much is drawn: classes with a timeline, columns of the memory curve, tensors. */
enum { DRAWN_LANES = 24, CURVE_PARTS = 600, DRAWN_TENSORS = 12 };

/* Cells of one phase and microbatch that follow each other. */
typedef struct bar {
    int64_t begin, end;
    wefti_phase phase;
    int32_t micro;
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
    bars lane[DRAWN_LANES];
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

static weft_status add_span(void *context, const wefti_sim_span *s) {
    report *r = context;
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
    b->bars[b->count++] = (bar){s->begin, s->end, s->step->phase, s->micro};
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

static const char style[] =
    ":root{--back:#fff;--text:#1d232a;--faint:#667;--line:#d5d9e0;--panel:#f5f6f8;"
    "--forward:#3b7dd8;--backward:#d9822b;--update:#3a9b62;--other:#8a8f98;--memory:#7a5cc8}"
    "@media(prefers-color-scheme:dark){:root{--back:#15181c;--text:#e6e9ee;--faint:#9aa3af;"
    "--line:#343a43;--panel:#1e2228;--forward:#6aa5f5;--backward:#f0a356;--update:#5cc388;"
    "--other:#9aa0aa;--memory:#a38bec}}"
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
    "svg text{font:10px sans-serif;fill:var(--faint)}";

static void add_fact(report *r, const char *name, double value, const char *unit) {
    wefti_text_add(&r->text,
                   value < 1e4 ? "<div>%s<b>%.4g%s</b></div>" : "<div>%s<b>%.0f%s</b></div>", name,
                   value, unit);
}

static void add_head(report *r) {
    const weft_prediction *p = r->p;
    char bytes[32];
    wefti_text_add(&r->text,
                   "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
                   "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                   "<meta name=\"color-scheme\" content=\"light dark\">"
                   "<link rel=\"icon\" href=\"data:,\"><title>Predicted step</title>"
                   "<style>%s</style></head><body><h1>Predicted step</h1><p class=\"faint\">%d "
                   "rank%s on ",
                   style, p->ranks, p->ranks == 1 ? "" : "s");
    wefti_report_escaped(&r->text, r->options->machine->name);
    wefti_text_add(&r->text, "</p><div class=\"facts\">");
    add_fact(r, p->stopped ? "ranks stop after" : "step", milliseconds(p->step_seconds), " ms");
    if (p->tokens_per_second > 0) add_fact(r, "tokens per second", p->tokens_per_second, "");
    if (p->mfu > 0) add_fact(r, "MFU", 100 * p->mfu, " %");
    wefti_text_add(&r->text, "<div>peak memory%s<b>%s</b></div>", p->fits ? "" : ", does not fit",
                   wefti_bytes_text(p->peak_bytes, bytes));
    add_fact(r, "exposed communication", milliseconds(p->exposed_seconds), " ms");
    add_fact(r, "idle on average", milliseconds(p->bubble_seconds), " ms");
    wefti_text_add(&r->text, "</div>");
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

static void add_lane(report *r, int32_t lane) {
    static const char *const phases[] = {"forward", "backward", "update", "other"};
    const weft_rank_prediction *c = &r->p->classes[lane];
    const bars *b = &r->lane[lane];
    wefti_text_add(&r->text, "<text x=\"0\" y=\"%d\">rank %d", lane * 18 + 12, c->rank);
    if (c->count > 1) wefti_text_add(&r->text, " (+%d)", c->count - 1);
    wefti_text_add(&r->text, "</text>");
    for (int64_t i = 0; i < b->count; i++) {
        const double x = 90 + 900 * ((double)b->bars[i].begin / (double)r->step);
        const double width = 900 * ((double)(b->bars[i].end - b->bars[i].begin) / (double)r->step);
        if (width < 0.05) continue;
        wefti_text_add(&r->text,
                       "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"14\" "
                       "fill=\"var(--%s)\" fill-opacity=\"%.2f\"><title>%s, microbatch "
                       "%d</title></rect>",
                       x, lane * 18 + 1, width, phases[b->bars[i].phase],
                       b->bars[i].micro % 2 ? 0.75 : 1.0, phases[b->bars[i].phase],
                       b->bars[i].micro);
    }
}

static void add_timeline(report *r) {
    const int32_t lanes = r->p->class_count < DRAWN_LANES ? r->p->class_count : DRAWN_LANES;
    wefti_text_add(
        &r->text,
        "<h2>Timeline</h2><p class=\"faint\"><span style=\"color:var(--forward)\">"
        "forward</span>, <span style=\"color:var(--backward)\">backward</span>, <span "
        "style=\"color:var(--update)\">update</span>, gray: other kernels; one row for equal ranks"
        "</p>"
        "<div class=\"wide\"><svg style=\"min-width:640px\" viewBox=\"0 0 1000 %d\" "
        "role=\"img\" aria-label=\"timeline\">",
        lanes * 18 + 14);
    for (int32_t i = 0; i < lanes; i++) add_lane(r, i);
    for (int i = 0; i <= 4; i++)
        wefti_text_add(&r->text, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">%.4g ms</text>",
                       90 + 225 * i, lanes * 18 + 12, i == 4 ? "end" : "start",
                       milliseconds(r->p->step_seconds) * i / 4);
    wefti_text_add(&r->text, "</svg></div>");
    if (r->p->class_count > DRAWN_LANES)
        wefti_text_add(&r->text, "<p class=\"faint\">and %d more classes of ranks</p>",
                       r->p->class_count - DRAWN_LANES);
}

static void add_curve(report *r, const int64_t *bytes, const char *look) {
    const double top = r->p->peak_bytes > 0 ? (double)r->p->peak_bytes : 1;
    int64_t before = 0;
    wefti_text_add(&r->text, "<path %s d=\"M0 190", look);
    for (int i = 0; i < CURVE_PARTS; i++) {
        if (bytes[i]) before = bytes[i]; /* within a step that began earlier */
        const double y = 190 - 180 * (double)before / top;
        wefti_text_add(&r->text, "L%.2f %.2fL%.2f %.2f", 1000.0 * i / CURVE_PARTS, y,
                       1000.0 * (i + 1) / CURVE_PARTS, y);
    }
    wefti_text_add(&r->text, "L1000 190Z\"/>");
}

static void add_memory_curve(report *r) {
    char bytes[32];
    wefti_text_add(&r->text,
                   "<h2>Memory</h2><p class=\"faint\">the arena of rank %d: bytes alive, and "
                   "behind them the highest byte in use, at most %s</p><div class=\"wide\">"
                   "<svg viewBox=\"0 0 1000 200\" role=\"img\" aria-label=\"memory in use\">",
                   r->p->peak_rank, wefti_bytes_text(r->p->peak_bytes, bytes));
    add_curve(r, r->highest, "fill=\"var(--line)\"");
    add_curve(r, r->alive, "fill=\"var(--memory)\"");
    wefti_text_add(&r->text, "</svg></div>");
}

static void add_largest(report *r) {
    const wefti_program *p = r->classes->programs[r->classes->class_of[r->p->peak_rank]];
    char bytes[32];
    wefti_text_add(
        &r->text,
        "<h2>Largest tensors at the peak</h2><div class=\"wide\"><table class=\"names\">");
    for (int32_t i = 0; i < p->largest_count && i < DRAWN_TENSORS; i++) {
        wefti_text_add(&r->text, "<tr><td>");
        wefti_report_escaped(&r->text, p->largest[i].name);
        wefti_text_add(&r->text, "</td><td>%s</td></tr>",
                       wefti_bytes_text(p->largest[i].bytes, bytes));
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
    for (int i = 0; i < DRAWN_LANES; i++) wefti_free(r->lane[i].bars);
    wefti_free(r);
    return status;
}
