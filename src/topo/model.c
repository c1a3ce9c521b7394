/* What machine models say: see model.h. */
#include "topo/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double wefti_curve_rate(const wefti_curve *c, double work) {
    if (work <= c->work[0]) return c->rate[0];
    if (work >= c->work[c->count - 1]) return c->rate[c->count - 1];
    int32_t low = 0, high = c->count - 1;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        *(c->work[middle] <= work ? &low : &high) = middle;
    }
    double part = log(work / c->work[low]) / log(c->work[high] / c->work[low]);
    return c->rate[low] * pow(c->rate[high] / c->rate[low], part);
}

double wefti_tier_rate(const wefti_tier_rates *tier, wefti_tier_way way, double bytes) {
    return tier->value > 0 ? tier->value : wefti_curve_rate(&tier->way[way], bytes);
}

const char *wefti_arithmetic_text(wefti_arithmetic arithmetic) {
    static const char *const names[] = {
#define NAME_ROW(name, text) text,
        WEFTI_ARITHMETIC_LIST(NAME_ROW)
#undef NAME_ROW
    };
    return names[arithmetic];
}

void wefti_model_destroy(wefti_machine_model *model) {
    if (model) wefti_arena_destroy(model->arena);
}

/* ---- levels ---- */

int32_t wefti_model_block(const wefti_machine_model *m, int32_t level) {
    const wefti_level *l = &m->level[level];
    if (l->devices) return l->devices;
    if (!l->hosts) return INT32_MAX;
    int64_t block = (int64_t)l->hosts * wefti_model_per_host(m);
    return block > INT32_MAX ? INT32_MAX : (int32_t)block;
}

int32_t wefti_model_level_of(const wefti_machine_model *m, int32_t a, int32_t b) {
    int32_t level = 0;
    for (; level < m->level_count - 1; level++) {
        int32_t block = wefti_model_block(m, level);
        if (a / block == b / block) break;
    }
    return level;
}

weft_status wefti_model_fits(const wefti_machine_model *m, int64_t ranks) {
    const int64_t hosts = m->hosts, per_host = wefti_model_per_host(m);
    const bool reaches = m->level_count > m->host_level + 1;
    WEFT_REQUIRE(hosts == 0 || ranks <= hosts * per_host, WEFT_E_ARG,
                 "the machine %s has %lld device%s (%lld host%s of %lld), but %lld are needed",
                 m->name, (long long)(hosts * per_host), hosts * per_host == 1 ? "" : "s",
                 (long long)hosts, hosts == 1 ? "" : "s", (long long)per_host, (long long)ranks);
    WEFT_REQUIRE(reaches || ranks <= per_host, WEFT_E_ARG,
                 "the machine %s has no link between hosts, and %lld devices need more than one "
                 "host of %lld",
                 m->name, (long long)ranks, (long long)per_host);
    return WEFT_OK;
}

static double byte_rate(const wefti_machine_model *m, int32_t level, double active) {
    const wefti_level *l = &m->level[level];
    const double rate = l->bytes_per_second.value;
    if (!l->uplink_bytes_per_second.source || active < 1) return rate;
    const double share = l->uplink_bytes_per_second.value / active;
    return share < rate ? share : rate;
}

double wefti_model_byte_seconds(const wefti_machine_model *m, int32_t level, double active) {
    return 1 / byte_rate(m, level, active);
}

/* ---- devices ---- */

static double shared(const wefti_figure *at_once, int64_t count) {
    const double all = (double)count;
    return at_once->source && all > at_once->value ? all / at_once->value : 1;
}

double wefti_model_sharing(const wefti_machine_model *m, int64_t ranks) {
    const int64_t per_host = wefti_model_per_host(m);
    return shared(&m->device.devices_at_once, ranks < per_host ? ranks : per_host) *
           shared(&m->device.hosts_at_once, (ranks + per_host - 1) / per_host);
}

static int64_t turn(const wefti_figure *at_once, int64_t number) {
    return at_once->source ? number % (int64_t)at_once->value : number;
}

int64_t wefti_model_processor(const wefti_machine_model *m, int32_t rank) {
    const int32_t per_host = wefti_model_per_host(m);
    return turn(&m->device.hosts_at_once, rank / per_host) * per_host +
           turn(&m->device.devices_at_once, rank % per_host);
}

/* The arithmetic that stands in for an absent one, in this order. */
static const wefti_arithmetic instead[WEFTI_ARITHMETICS][WEFTI_ARITHMETICS] = {
    [WEFTI_ARITHMETIC_F64] = {WEFTI_ARITHMETIC_F64, WEFTI_ARITHMETIC_F32, WEFTI_ARITHMETIC_TF32,
                              WEFTI_ARITHMETIC_F16, WEFTI_ARITHMETIC_BF16, WEFTI_ARITHMETIC_F8},
    [WEFTI_ARITHMETIC_F32] = {WEFTI_ARITHMETIC_F32, WEFTI_ARITHMETIC_TF32, WEFTI_ARITHMETIC_F64,
                              WEFTI_ARITHMETIC_F16, WEFTI_ARITHMETIC_BF16, WEFTI_ARITHMETIC_F8},
    [WEFTI_ARITHMETIC_TF32] = {WEFTI_ARITHMETIC_TF32, WEFTI_ARITHMETIC_F32, WEFTI_ARITHMETIC_F16,
                               WEFTI_ARITHMETIC_BF16, WEFTI_ARITHMETIC_F64, WEFTI_ARITHMETIC_F8},
    [WEFTI_ARITHMETIC_BF16] = {WEFTI_ARITHMETIC_BF16, WEFTI_ARITHMETIC_F16, WEFTI_ARITHMETIC_TF32,
                               WEFTI_ARITHMETIC_F32, WEFTI_ARITHMETIC_F64, WEFTI_ARITHMETIC_F8},
    [WEFTI_ARITHMETIC_F16] = {WEFTI_ARITHMETIC_F16, WEFTI_ARITHMETIC_BF16, WEFTI_ARITHMETIC_TF32,
                              WEFTI_ARITHMETIC_F32, WEFTI_ARITHMETIC_F64, WEFTI_ARITHMETIC_F8},
    [WEFTI_ARITHMETIC_F8] = {WEFTI_ARITHMETIC_F8, WEFTI_ARITHMETIC_F16, WEFTI_ARITHMETIC_BF16,
                             WEFTI_ARITHMETIC_TF32, WEFTI_ARITHMETIC_F32, WEFTI_ARITHMETIC_F64},
};

double wefti_model_product_rate(const wefti_device_model *d, wefti_arithmetic arithmetic) {
    for (int i = 0; i < WEFTI_ARITHMETICS; i++) {
        wefti_arithmetic a = instead[arithmetic][i];
        const wefti_curve *curve = &d->product[a];
        if (curve->count) return curve->rate[curve->count - 1];
        if (!d->peak_flops[a].source) continue;
        return d->peak_flops[a].value *
               (d->product_efficiency.source ? d->product_efficiency.value : 1);
    }
    return d->vector_flops.value;
}

const char *wefti_model_op_key(const char *op, wefti_arithmetic arithmetic, char out[64]) {
    const bool plain = arithmetic == WEFTI_ARITHMETIC_F32;
    (void)snprintf(out, 64, "%.50s%s%s", op, plain ? "" : ".",
                   plain ? "" : wefti_arithmetic_text(arithmetic));
    return out;
}

double wefti_model_op_factor(const wefti_device_model *d, const char *op,
                             wefti_arithmetic arithmetic, double work) {
    char key[64];
    if (!d->op_factor_count) return 1;
    (void)wefti_model_op_key(op, arithmetic, key);
    for (int32_t i = 0; i < d->op_factor_count; i++)
        if (!strcmp(d->op_factors[i].op, key))
            return wefti_curve_rate(&d->op_factors[i].curve, work);
    return 1;
}

wefti_machine wefti_model_rates(const wefti_machine_model *m) {
    const wefti_device_model *d = &m->device;
    double bytes = d->memory_bytes_per_second.value;
    if (d->memory_efficiency.source) bytes *= d->memory_efficiency.value;
    return (wefti_machine){.vector_flops = d->vector_flops.value,
                           .product_f32 = wefti_model_product_rate(d, WEFTI_ARITHMETIC_F32),
                           .product_bf16 = wefti_model_product_rate(d, WEFTI_ARITHMETIC_BF16),
                           .bytes_per_second = bytes,
                           .start_seconds = d->launch_seconds.value};
}

static wefti_measured_link link_of(const wefti_machine_model *m, int32_t level, double active) {
    return (wefti_measured_link){.latency_seconds = m->level[level].latency_seconds.value,
                                 .bytes_per_second = byte_rate(m, level, active)};
}

wefti_links wefti_model_links(const wefti_machine_model *m) {
    int32_t near = m->host_level, last = m->level_count - 1;
    while (near < last && m->level[near + 1].bytes_per_second.value >=
                              m->level[m->host_level].bytes_per_second.value / 2)
        near++;
    wefti_links links = {.measured = true, .same_host = link_of(m, near, 1)};
    const bool one_block =
        m->hosts && (int64_t)m->hosts * wefti_model_per_host(m) <= wefti_model_block(m, near);
    if (near == last || one_block) return links;
    links.ranks_per_host = wefti_model_block(m, near);
    links.between_hosts = link_of(m, last, wefti_model_block(m, near));
    return links;
}

/* ---- rules ---- */

static weft_status check_level(const wefti_machine_model *m, int32_t i) {
    const wefti_level *l = &m->level[i], *below = i ? &m->level[i - 1] : NULL;
    WEFT_REQUIRE(!l->devices || !l->hosts, WEFT_E_ARG,
                 "level '%s' has both devices and hosts; a block is counted in one of them",
                 l->name);
    if (i == 0) {
        WEFT_REQUIRE(l->devices, WEFT_E_ARG,
                     "level '%s' is the first one, so it needs `devices`: the devices of a host "
                     "(or of a part of it) that are linked",
                     l->name);
        return WEFT_OK;
    }
    WEFT_REQUIRE(below->devices || below->hosts, WEFT_E_ARG,
                 "level '%s' has neither devices nor hosts, so it links the whole machine; level "
                 "'%s' cannot follow it",
                 below->name, l->name);
    WEFT_REQUIRE(!l->devices || below->devices, WEFT_E_ARG,
                 "level '%s' counts devices, but level '%s' before it counts hosts", l->name,
                 below->name);
    int32_t inner = below->devices && l->hosts ? 1 : below->devices ? below->devices : below->hosts;
    int32_t outer = l->devices ? l->devices : l->hosts;
    WEFT_REQUIRE(!outer || (outer % inner == 0 && (outer > inner || (below->devices && l->hosts))),
                 WEFT_E_ARG,
                 "a block of level '%s' has %d, and a block of level '%s' %d; it must be a "
                 "multiple of that",
                 l->name, outer, below->name, inner);
    return WEFT_OK;
}

weft_status wefti_model_check(const wefti_machine_model *m) {
    bool computes = false;
    WEFT_REQUIRE(m->level_count >= 1, WEFT_E_ARG, "levels is empty; a machine has at least one");
    for (int32_t i = 0; i < m->level_count; i++) WEFT_TRY(check_level(m, i));
    const int64_t per_host = m->level[m->host_level].devices;
    WEFT_REQUIRE(per_host * (m->hosts ? m->hosts : 1) <= WEFTI_MODEL_DEVICES_MAX, WEFT_E_ARG,
                 "%d hosts of %lld devices are more than %d devices", m->hosts, (long long)per_host,
                 WEFTI_MODEL_DEVICES_MAX);
    const wefti_level *last = &m->level[m->level_count - 1];
    if (m->hosts > 1)
        WEFT_REQUIRE(!last->devices && (!last->hosts || last->hosts >= m->hosts), WEFT_E_ARG,
                     "there are %d hosts, but level '%s', the last one, links only %d", m->hosts,
                     last->name, last->hosts ? last->hosts : 1);
    for (int a = 0; a < WEFTI_ARITHMETICS; a++)
        computes |= m->device.peak_flops[a].source || m->device.product[a].count;
    WEFT_REQUIRE(computes, WEFT_E_ARG,
                 "device.peak_flops is empty; name at least one of f64, "
                 "f32, tf32, bf16, f16, f8");
    const wefti_device_model *d = &m->device;
    WEFT_REQUIRE(!d->units.source == !d->tile_rows.source &&
                     !d->units.source == !d->tile_columns.source,
                 WEFT_E_ARG, "device: units, tile_rows and tile_columns belong together");
    return WEFT_OK;
}
