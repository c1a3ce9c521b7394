/* The elementwise interpreter: see kernels/elementwise.h. A task is 8192 elements, and a block is
 * 512. A long chain with more than a dozen registers has smaller blocks. So all registers together
 * stay in the first-level cache, and fit on any thread's stack. */
#include "backend/cpu/kernels/vector/elementwise_ops.h"
#include "backend/cpu/kernels/vector/table.h"

enum { BLOCK = 512, TASK = 8192, LINE = 16, SPACE = 16 * BLOCK /* of all registers */ };

typedef struct ew_run {
    const wefti_elementwise_args *a;
    const wefti_ew_program *p;
} ew_run;

/* Loads n elements from `start` with a stride, as f32. */
static void load_strided(weft_dtype dtype, const void *data, int64_t start, int64_t stride,
                         int64_t n, float *dst) {
    if (stride == 1 && (dtype == WEFT_F32 || dtype == WEFT_BF16)) {
        wefti_src x = {data, dtype};
        FOR_VECTORS(i, m, n) store_f32(dst + i, load(x, start + i, m), m);
        return;
    }
    switch (dtype) {
    case WEFT_F32: {
        const float *x = (const float *)data + start;
        if (stride == 0)
            for (int64_t i = 0; i < n; i++) dst[i] = x[0];
        else
            for (int64_t i = 0; i < n; i++) dst[i] = x[i * stride];
        return;
    }
    case WEFT_BF16: {
        const uint16_t *x = (const uint16_t *)data + start;
        for (int64_t i = 0; i < n; i++) dst[i] = wefti_bf16_to_f32(x[i * stride]);
        return;
    }
    case WEFT_I32: {
        const int32_t *x = (const int32_t *)data + start;
        for (int64_t i = 0; i < n; i++) dst[i] = (float)x[i * stride];
        return;
    }
    case WEFT_BOOL: {
        const uint8_t *x = (const uint8_t *)data + start;
        for (int64_t i = 0; i < n; i++) dst[i] = x[i * stride] ? 1.0f : 0.0f;
        return;
    }
    default: {
        const uint8_t *x = (const uint8_t *)data + start;
        for (int64_t i = 0; i < n; i++) dst[i] = (float)x[i * stride];
        return;
    }
    }
}

/* Iterates over elements start .. start + n - 1 of the program's shape, as runs along its last
 * dimension. */
typedef struct odometer {
    int rank;
    const int64_t *shape, *strides;
    int64_t index[WEFT_MAX_RANK], at;
} odometer;

static void odometer_start(odometer *o, const wefti_ew_program *p, const int64_t *strides,
                           int64_t element) {
    o->rank = p->rank;
    o->shape = p->shape;
    o->strides = strides;
    o->at = 0;
    for (int d = p->rank - 1; d >= 0; d--) {
        o->index[d] = element % p->shape[d];
        element /= p->shape[d];
        o->at += o->index[d] * strides[d];
    }
}
static int64_t odometer_run(const odometer *o, int64_t left) {
    return o->rank ? min64(left, o->shape[o->rank - 1] - o->index[o->rank - 1]) : left;
}
static void odometer_advance(odometer *o, int64_t steps) {
    int d = o->rank - 1;
    if (d < 0) return;
    o->index[d] += steps;
    o->at += steps * o->strides[d];
    while (d > 0 && o->index[d] >= o->shape[d]) {
        o->at += o->strides[d - 1] - o->index[d] * o->strides[d];
        o->index[d] = 0;
        o->index[--d]++;
    }
}

/* Returns input k's elements start .. start + n - 1: in place if they lie ready, else copied into
 * `block`. */
static const float *load_input(const ew_run *run, int k, int64_t start, int64_t n, float *block) {
    const wefti_ew_input *in = &run->p->input[k];
    const void *data = run->a->in[k];
    bool whole = in->dtype == WEFT_F32 && n % VL == 0;
    switch (in->broadcast) {
    case WEFTI_EW_SCALAR:
        return block; /* filled once per task */
    case WEFTI_EW_FULL:
        if (whole) return (const float *)data + start;
        load_strided(in->dtype, data, start, 1, n, block);
        return block;
    case WEFTI_EW_ROW: {
        int64_t at = start % in->inner;
        if (whole && at + n <= in->inner) return (const float *)data + at;
        for (int64_t i = 0; i < n;) {
            int64_t m = min64(n - i, in->inner - at);
            load_strided(in->dtype, data, at, 1, m, block + i);
            i += m;
            at = 0;
        }
        return block;
    }
    case WEFTI_EW_COLUMN: {
        int64_t row = start / in->inner, at = start % in->inner;
        for (int64_t i = 0; i < n; row++) {
            int64_t m = min64(n - i, in->inner - at);
            load_strided(in->dtype, data, row, 0, m, block + i);
            i += m;
            at = 0;
        }
        return block;
    }
    case WEFTI_EW_STRIDED:
        break;
    }
    odometer o;
    odometer_start(&o, run->p, in->strides, start);
    for (int64_t i = 0; i < n;) {
        int64_t m = odometer_run(&o, n - i);
        load_strided(in->dtype, data, o.at, run->p->rank ? in->strides[run->p->rank - 1] : 0, m,
                     block + i);
        odometer_advance(&o, m);
        i += m;
    }
    return block;
}

static void load_uniform(const ew_run *run, uint64_t stream, int64_t start, int64_t n,
                         float *block) {
    const wefti_ew_program *p = run->p;
    uint64_t base = (uint64_t)run->a->position_base;
    if (p->position_flat) {
        philox_uniform(run->a->seed, stream, base + (uint64_t)start, n, block);
        return;
    }
    odometer o;
    odometer_start(&o, p, p->position_strides, start);
    int64_t step = p->rank ? p->position_strides[p->rank - 1] : 0;
    for (int64_t i = 0; i < n;) {
        int64_t m = odometer_run(&o, n - i);
        uint64_t at = base + (uint64_t)o.at;
        if (step == 1)
            philox_uniform(run->a->seed, stream, at, m, block + i);
        else
            for (int64_t j = 0; j < m; j++)
                block[i + j] =
                    wefti_philox_uniform(run->a->seed, stream, at + (uint64_t)(j * step));
        odometer_advance(&o, m);
        i += m;
    }
}

static void store_output(weft_dtype dtype, void *data, int64_t start, int64_t n, const float *x) {
    if (dtype == WEFT_F32 || dtype == WEFT_BF16) {
        wefti_dst y = {data, dtype};
        FOR_VECTORS(i, m, n) store(y, start + i, load_f32(x + i, m), m);
    } else if (dtype == WEFT_I32) {
        int32_t *y = (int32_t *)data + start;
        for (int64_t i = 0; i < n; i++) {
            if (x[i] >= 2147483648.0f)
                y[i] = INT32_MAX;
            else if (x[i] < -2147483648.0f)
                y[i] = INT32_MIN;
            else
                y[i] = x[i] == x[i] ? (int32_t)x[i] : 0;
        }
    } else if (dtype == WEFT_BOOL) {
        uint8_t *y = (uint8_t *)data + start;
        for (int64_t i = 0; i < n; i++) y[i] = x[i] != 0.0f;
    } else {
        uint8_t *y = (uint8_t *)data + start;
        for (int64_t i = 0; i < n; i++)
            y[i] = (uint8_t)(x[i] > 0.0f ? (x[i] < 255.0f ? x[i] : 255.0f) : 0.0f);
    }
}

/* The inputs that an instruction or an output reads. Other inputs cost nothing. */
static uint32_t used_inputs(const wefti_ew_program *p) {
    uint32_t used = 0;
    for (int k = 0; k < p->instructions; k++) {
        const wefti_ew_instruction *in = &p->code[k];
        int operands = wefti_ew_op_operands((wefti_ew_op)in->op);
        const uint8_t reg[3] = {in->a, in->b, in->c};
        for (int j = 0; j < operands; j++)
            if (reg[j] < p->inputs) used |= 1u << reg[j];
    }
    for (int k = 0; k < p->outputs; k++)
        if (p->output[k].reg < p->inputs) used |= 1u << p->output[k].reg;
    return used;
}

static int registers_of(const wefti_ew_program *p) {
    int count = p->inputs;
    for (int k = 0; k < p->instructions; k++)
        if (p->code[k].dst >= count) count = p->code[k].dst + 1;
    return count;
}

static void elementwise_task(void *context, int64_t task, int thread) {
    (void)thread;
    const ew_run *run = context;
    const wefti_ew_program *p = run->p;
    _Alignas(64) float space[SPACE];
    float *block[WEFTI_EW_REGISTERS];
    const float *reg[WEFTI_EW_REGISTERS];
    int registers = registers_of(p);
    int64_t each = min64(BLOCK, SPACE / (registers + 1) / LINE * LINE);
    float *uniform = space + registers * each;
    uint32_t used = used_inputs(p);
    for (int k = 0; k < registers; k++) reg[k] = block[k] = space + k * each;
    for (int k = 0; k < p->inputs; k++)
        if ((used >> k & 1u) && p->input[k].broadcast == WEFTI_EW_SCALAR)
            load_strided(p->input[k].dtype, run->a->in[k], 0, 0, each, block[k]);

    int64_t end = min64(p->elements, (task + 1) * TASK);
    for (int64_t start = task * TASK; start < end; start += each) {
        int64_t n = min64(each, end - start), padded = blocks_of(n, VL) * VL;
        for (int k = 0; k < p->inputs; k++) {
            if (!(used >> k & 1u)) continue;
            if (p->input[k].broadcast != WEFTI_EW_SCALAR)
                for (int64_t i = n; i < padded; i++) block[k][i] = 0.0f;
            reg[k] = load_input(run, k, start, n, block[k]);
        }
        /* The last instruction may write straight to memory, because no instruction reads its
         * result. */
        int direct = -1;
        for (int k = 0; k < p->instructions; k++) {
            const wefti_ew_instruction *in = &p->code[k];
            ew_step s = {.dst = block[in->dst], .n = padded, .imm = in->imm, .imm2 = in->imm2};
            int operands = wefti_ew_op_operands((wefti_ew_op)in->op);
            if (operands > 0) s.a = reg[in->a];
            if (operands > 1) s.b = reg[in->b];
            if (operands > 2) s.c = reg[in->c];
            if (in->op == WEFTI_EW_DROPOUT || in->op == WEFTI_EW_DROPOUT_MASK) {
                load_uniform(run, in->stream, start, n, uniform);
                for (int64_t i = n; i < padded; i++) uniform[i] = 0.0f;
                s.uniform = uniform;
                s.imm2 = 1.0f / (1.0f - in->imm);
            }
            if (k == p->instructions - 1 && n == padded && p->outputs == 1 &&
                p->output[0].reg == in->dst && p->output[0].dtype == WEFT_F32) {
                s.dst = (float *)run->a->out[0] + start;
                direct = 0;
            }
            ew_functions[in->op](&s);
            reg[in->dst] = s.dst;
        }
        for (int k = 0; k < p->outputs; k++)
            if (k != direct)
                store_output(p->output[k].dtype, run->a->out[k], start, n, reg[p->output[k].reg]);
    }
}

void KERNEL(elementwise)(wefti_pool *pool, const wefti_elementwise_args *a) {
    ew_run run = {a, a->program};
    if (run.p->elements > 0)
        wefti_pool_run(pool, blocks_of(run.p->elements, TASK), elementwise_task, &run);
}
