/* The plan in the HTML report: degrees, the mesh on hosts, alternatives. See report.h. */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"
#include "search/predict/report.h"

/* How much is drawn. */
enum { DRAWN_HOSTS = 32, DRAWN_ON_HOST = 64 };

/* What a drawing shows: an axis of the mesh, or one of these. */
enum { BY_STAGE = -1, BY_CLASS = -2 };

typedef struct drawing {
    wefti_text *out;
    const weft_plan *plan; /* NULL: one device */
    const wefti_machine_model *machine;
    const weft_prediction *p;
    const wefti_simulation *s;
} drawing;

static int32_t stage_of(const drawing *d, int32_t rank) {
    return d->plan ? wefti_plan_stage_of_rank(d->plan, rank) : 0;
}

/* ---- colors ---- */

/* Ranks of equal numbers have one color. Along an axis: the lowest rank of the group. */
static int32_t number_of(const drawing *d, int by, int32_t rank) {
    int32_t at[WEFTI_MAX_AXES];
    if (by == BY_STAGE) return stage_of(d, rank);
    if (by == BY_CLASS) return d->s->player_of[rank];
    const wefti_mesh mesh = wefti_plan_mesh(d->plan, stage_of(d, rank));
    wefti_mesh_coordinates(&mesh, rank, at);
    at[by] = 0;
    return wefti_mesh_rank(&mesh, at);
}

/* Numbers of groups are multiples of a stride, which would give few colors: count them instead. */
static int32_t color_of(const drawing *d, int by, int32_t rank) {
    int32_t number = number_of(d, by, rank), place = 0;
    if (by < 0) return number;
    const wefti_mesh mesh = wefti_plan_mesh(d->plan, stage_of(d, rank));
    int32_t at[WEFTI_MAX_AXES];
    wefti_mesh_coordinates(&mesh, number, at);
    for (int a = 0; a < mesh.axes; a++)
        if (a != by) place = place * mesh.axis[a].size + at[a];
    return place + mesh.first;
}

static void add_tile(const drawing *d, int by, int32_t rank) {
    const int hue = (int)((int64_t)color_of(d, by, rank) * 137 % 360);
    wefti_text_add(d->out, "<i style=\"background:hsl(%d 55%% 38%%)\" title=\"rank %d", hue, rank);
    if (d->plan) {
        const int32_t stage = stage_of(d, rank);
        const wefti_mesh mesh = wefti_plan_mesh(d->plan, stage);
        int32_t at[WEFTI_MAX_AXES];
        wefti_mesh_coordinates(&mesh, rank, at);
        if (d->plan->pipeline.stages > 1) wefti_text_add(d->out, ", stage %d", stage);
        for (int a = 0; a < mesh.axes; a++)
            wefti_text_add(d->out, ", %s %d", mesh.axis[a].name, at[a]);
    }
    wefti_text_add(d->out, "\">%d</i>", rank);
}

static void add_hosts(const drawing *d, int by) {
    const int32_t per = wefti_model_per_host(d->machine), world = d->p->ranks;
    const int32_t hosts = (world + per - 1) / per;
    wefti_text_add(d->out, "<div class=\"hosts\">");
    for (int32_t h = 0; h < hosts && h < DRAWN_HOSTS; h++) {
        wefti_text_add(d->out, "<div class=\"host\" title=\"host %d\">", h);
        for (int32_t k = 0; k < per && k < DRAWN_ON_HOST && h * per + k < world; k++)
            add_tile(d, by, h * per + k);
        wefti_text_add(d->out, "</div>");
    }
    wefti_text_add(d->out, "</div>");
    if (hosts > DRAWN_HOSTS)
        wefti_text_add(d->out, "<p class=\"faint\">and %d more hosts</p>", hosts - DRAWN_HOSTS);
}

/* ---- axes ---- */

/* The levels of links between neighbors of the first group. */
static void add_links(const drawing *d, int axis) {
    const wefti_mesh mesh = wefti_plan_mesh(d->plan, 0);
    bool used[WEFTI_LEVELS_MAX] = {false}, first = true;
    int32_t at[WEFTI_MAX_AXES] = {0};
    for (int32_t i = 1; i < mesh.axis[axis].size; i++) {
        at[axis] = i - 1;
        const int32_t a = wefti_mesh_rank(&mesh, at);
        at[axis] = i;
        used[wefti_model_level_of(d->machine, a, wefti_mesh_rank(&mesh, at))] = true;
    }
    for (int32_t l = 0; l < d->machine->level_count; l++) {
        if (!used[l]) continue;
        wefti_text_add(d->out, first ? "" : " and ");
        wefti_report_escaped(d->out, d->machine->level[l].name);
        first = false;
    }
}

static void add_axis(const drawing *d, int axis) {
    const wefti_axis *a = &d->plan->mesh.axis[axis];
    if (a->size == 1) return;
    wefti_text_add(d->out, "<h3>");
    wefti_report_escaped(d->out, a->name);
    wefti_text_add(d->out, " = %d</h3><p class=\"faint\">groups of %d ranks on the level ", a->size,
                   a->size);
    add_links(d, axis);
    wefti_text_add(d->out, "</p>");
    add_hosts(d, axis);
}

static void add_settings(const drawing *d) {
    static const char *const schedules[] = {
#define REPORT_TEXT(name, text) text,
        WEFT_PIPELINE_SCHEDULE_LIST(REPORT_TEXT)};
    static const char *const recomputes[] = {WEFT_RECOMPUTE_LIST(REPORT_TEXT)};
#undef REPORT_TEXT
    const weft_plan *p = d->plan;
    wefti_text_add(d->out, "<p>");
    if (p->pipeline.stages > 1)
        wefti_text_add(d->out, "%d stages, %d microbatches, schedule %s, %d chunk%s of a stage; ",
                       p->pipeline.stages, p->pipeline.microbatches,
                       schedules[p->pipeline.schedule], p->pipeline.chunks,
                       p->pipeline.chunks == 1 ? "" : "s");
    else
        wefti_text_add(d->out, "%d microbatch%s; ", p->accumulate, p->accumulate == 1 ? "" : "es");
    wefti_text_add(d->out, "optimizer level %d; recomputation: %s</p>", p->optimizer.level,
                   recomputes[p->recompute.mode]);
}

void wefti_report_mesh(wefti_text *out, const weft_plan *plan, const wefti_machine_model *machine,
                       const weft_prediction *p, const wefti_simulation *s) {
    const drawing d = {out, plan, machine, p, s};
    wefti_text_add(out, "<h2>Mesh on hosts</h2>");
    if (plan) {
        add_settings(&d);
        wefti_text_add(out, "<p class=\"faint\">A box is a host. Ranks of one color are a group: "
                            "they communicate along the axis.</p>");
        if (plan->pipeline.stages > 1) {
            wefti_text_add(out, "<h3>stages</h3><p class=\"faint\">one color for each</p>");
            add_hosts(&d, BY_STAGE);
        }
        for (int a = 0; a < plan->mesh.axes; a++) add_axis(&d, a);
    }
    wefti_text_add(out, "<h3>kinds of ranks</h3><p class=\"faint\">Ranks of one color do the same "
                        "at the same times.</p>");
    add_hosts(&d, BY_CLASS);
}

/* ---- alternatives ---- */

void wefti_report_alternatives(wefti_text *out, const weft_search_report *search) {
    if (!search || !search->alternative_count) return;
    const double step = search->prediction->step_seconds;
    wefti_text_add(
        out,
        "<h2>Alternatives</h2><p class=\"faint\">plans that the search has simulated; no "
        "plan of its space is faster than %.4g ms</p><div class=\"wide\"><table><tr>"
        "<th>constraints</th><th>step</th><th>longer by</th><th>peak memory</th></tr>",
        search->lower_bound_seconds * 1e3);
    wefti_text_add(out, "<tr><td><b>");
    wefti_report_escaped(out, search->degrees);
    wefti_text_add(out, "</b></td><td>%.4g ms</td><td></td><td>%.4g GiB</td></tr>", step * 1e3,
                   (double)search->prediction->peak_bytes / (double)(1 << 30));
    for (int i = 0; i < search->alternative_count; i++) {
        const weft_search_alternative *a = &search->alternatives[i];
        wefti_text_add(out, "<tr><td>");
        wefti_report_escaped(out, a->degrees);
        wefti_text_add(out, "</td><td>%.4g ms</td><td>%.1f %%</td><td>%.4g GiB%s</td></tr>",
                       a->step_seconds * 1e3, 100 * (a->step_seconds / step - 1),
                       (double)a->peak_bytes / (double)(1 << 30), a->fits ? "" : ", does not fit");
    }
    wefti_text_add(out, "</table></div>");
}
