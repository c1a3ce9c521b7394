/* Printing machine files: see model.h. */
#include "base/json/json.h"
#include "topo/model.h"

/* Puts a comma before every member but the first one. */
static void begin(wefti_text *out, bool *first, int depth, const char *key) {
    wefti_text_add(out, "%s\n%*s\"%s\": ", *first ? "" : ",", 2 * depth, "", key);
    *first = false;
}

/* 3.35e+12 rather than 3350000000000. */
static void print_real(wefti_text *out, double value) {
    char text[32];
    wefti_text_add(out, "%s", wefti_real_text(value, 1, 17, text));
}

static void print_figure(wefti_text *out, bool *first, int depth, const char *key,
                         const wefti_figure *figure) {
    if (!figure->source) return;
    begin(out, first, depth, key);
    wefti_text_add(out, "{\"value\": ");
    print_real(out, figure->value);
    wefti_text_add(out, ", \"source\": ");
    wefti_json_quote(out, figure->source);
    wefti_text_add(out, "}");
}

static void print_points(wefti_text *out, const wefti_curve *curve) {
    for (int32_t i = 0; i < curve->count; i++) {
        wefti_text_add(out, "%s[", i ? ", " : "[");
        print_real(out, curve->work[i]);
        wefti_text_add(out, ", ");
        print_real(out, curve->rate[i]);
        wefti_text_add(out, "]");
    }
    wefti_text_add(out, "]");
}

static void print_curve(wefti_text *out, bool *first, int depth, const char *key,
                        const wefti_curve *curve) {
    if (!curve->count) return;
    begin(out, first, depth, key);
    wefti_text_add(out, "{\"source\": ");
    wefti_json_quote(out, curve->source);
    wefti_text_add(out, ",\n%*s\"points\": ", 2 * depth + 2, "");
    print_points(out, curve);
    wefti_text_add(out, "}");
}

static void print_tier(wefti_text *out, bool *first, const char *key,
                       const wefti_tier_rates *tier) {
    static const char *const ways[] = {
#define WAY_TEXT(name, text) text,
        WEFTI_TIER_WAY_LIST(WAY_TEXT)
#undef WAY_TEXT
    };
    if (!tier->source) return;
    if (tier->value > 0) {
        print_figure(out, first, 2, key, &(wefti_figure){tier->value, tier->source});
        return;
    }
    begin(out, first, 2, key);
    wefti_text_add(out, "{\"source\": ");
    wefti_json_quote(out, tier->source);
    if (tier->depth) wefti_text_add(out, ", \"depth\": %d", tier->depth);
    if (tier->spends_cores) wefti_text_add(out, ", \"spends_cores\": true");
    for (int w = 0; w < WEFTI_TIER_WAYS; w++) {
        wefti_text_add(out, ",\n%*s\"%s\": ", 6, "", ways[w]);
        print_points(out, &tier->way[w]);
    }
    wefti_text_add(out, "}");
}

static void print_device(const wefti_device_model *d, wefti_text *out) {
    bool first = true, inner = true, any = false;
    wefti_text_add(out, "{");
#define PRINT_FIGURE(name, least, most, needed) print_figure(out, &first, 2, #name, &d->name);
    WEFTI_DEVICE_FIGURES(PRINT_FIGURE)
#undef PRINT_FIGURE
#define PRINT_TIER(name) print_tier(out, &first, #name, &d->name);
    WEFTI_DEVICE_TIERS(PRINT_TIER)
#undef PRINT_TIER
    begin(out, &first, 2, "peak_flops");
    wefti_text_add(out, "{");
    for (int a = 0; a < WEFTI_ARITHMETICS; a++) {
        print_figure(out, &inner, 3, wefti_arithmetic_text((wefti_arithmetic)a), &d->peak_flops[a]);
        any |= d->product[a].count > 0;
    }
    wefti_text_add(out, inner ? "}" : "\n    }");
    if (any) {
        inner = true;
        begin(out, &first, 2, "product_curves");
        wefti_text_add(out, "{");
        for (int a = 0; a < WEFTI_ARITHMETICS; a++)
            print_curve(out, &inner, 3, wefti_arithmetic_text((wefti_arithmetic)a), &d->product[a]);
        wefti_text_add(out, "\n    }");
    }
    print_curve(out, &first, 2, "memory_curve", &d->memory);
    if (d->op_factor_count) {
        inner = true;
        begin(out, &first, 2, "op_factors");
        wefti_text_add(out, "{");
        for (int32_t i = 0; i < d->op_factor_count; i++)
            print_curve(out, &inner, 3, d->op_factors[i].op, &d->op_factors[i].curve);
        wefti_text_add(out, "\n    }");
    }
    wefti_text_add(out, "\n  }");
}

static void print_level(const wefti_level *l, wefti_text *out) {
    bool first = true;
    wefti_text_add(out, "{");
    begin(out, &first, 3, "name");
    wefti_json_quote(out, l->name);
    if (l->devices) {
        begin(out, &first, 3, "devices");
        wefti_text_add(out, "%d", l->devices);
    }
    if (l->hosts) {
        begin(out, &first, 3, "hosts");
        wefti_text_add(out, "%d", l->hosts);
    }
    print_figure(out, &first, 3, "latency_seconds", &l->latency_seconds);
    print_figure(out, &first, 3, "bytes_per_second", &l->bytes_per_second);
    print_figure(out, &first, 3, "uplink_bytes_per_second", &l->uplink_bytes_per_second);
    if (l->reduces) {
        begin(out, &first, 3, "reduces");
        wefti_text_add(out, "true");
    }
    if (l->moved_in_waits) {
        begin(out, &first, 3, "moved_in_waits");
        wefti_text_add(out, "true");
    }
    print_curve(out, &first, 3, "all_reduce_curve", &l->all_reduce);
    wefti_text_add(out, "\n    }");
}

void wefti_model_print(const wefti_machine_model *m, wefti_text *out) {
    bool first = true;
    wefti_text_add(out, "{");
    begin(out, &first, 1, "version");
    wefti_text_add(out, "1");
    begin(out, &first, 1, "name");
    wefti_json_quote(out, m->name);
    if (m->description) {
        begin(out, &first, 1, "description");
        wefti_json_quote(out, m->description);
    }
    if (m->hosts) {
        begin(out, &first, 1, "hosts");
        wefti_text_add(out, "%d", m->hosts);
    }
    begin(out, &first, 1, "device");
    print_device(&m->device, out);
    begin(out, &first, 1, "levels");
    wefti_text_add(out, "[");
    for (int32_t i = 0; i < m->level_count; i++) {
        wefti_text_add(out, i ? ", " : "");
        print_level(&m->level[i], out);
    }
    wefti_text_add(out, "]\n}\n");
}
