/* Runs the instructions of a routine: kernels, copies and additions. */
#include "compile/routine_run.h"

#include <stddef.h>

static weft_status run_move(const wefti_routine_call *c, const wefti_instruction *x) {
    const wefti_operand to = c->at(c->context, x->out[0], x->bytes),
                        from = c->at(c->context, x->in[0], 0);
    wefti_stream *stream = c->run->stream;
    if (x->add)
        return wefti_stream_add(stream, c->space, x->dtype, to.data, from.data,
                                x->bytes / (int64_t)weft_dtype_bytes(x->dtype));
    if (x->bytes == 0) return WEFT_OK;
    return wefti_stream_copy(stream, to.data, to.space, from.data, from.space, x->bytes);
}

/* The memory operands of one kernel call. */
typedef struct operands {
    const void *in[WEFTI_MAX_IN];
    void *out[WEFTI_MAX_OUT];
    void *workspace; /* NULL: none */
} operands;

/* Lists all memory that a kernel may touch. */
static int ranges_of(const wefti_instruction *x, const operands *o,
                     wefti_byte_range out[WEFTI_MAX_IN + WEFTI_MAX_OUT + 1]) {
    const weft_node *n = x->node;
    int count = 0;
    for (int i = 0; i < n->inputs; i++)
        if (o->in[i]) out[count++] = (wefti_byte_range){o->in[i], weft_desc_bytes(wefti_in(n, i))};
    for (int i = 0; i < n->outputs; i++)
        if (o->out[i])
            out[count++] = (wefti_byte_range){o->out[i], weft_desc_bytes(wefti_out(n, i))};
    if (o->workspace) out[count++] = (wefti_byte_range){o->workspace, x->kernel->workspace_bytes};
    return count;
}

static weft_status launch(const wefti_routine_call *c, const wefti_instruction *x, operands *o) {
    const wefti_run *run = c->run;
    /* kernels add offsets to the workspace's address, even if the offset is 0 */
    max_align_t nothing;
    void *workspace = o->workspace ? o->workspace : (void *)&nothing;
    if (!wefti_stream_exposes(run->stream))
        return x->kernel->run(x->kernel, run, o->in, o->out, workspace);
    wefti_byte_range ranges[WEFTI_MAX_IN + WEFTI_MAX_OUT + 1];
    int count = ranges_of(x, o, ranges);
    WEFT_TRY(wefti_stream_expose(run->stream, c->space, ranges, count));
    weft_status status = x->kernel->run(x->kernel, run, o->in, o->out, workspace);
    wefti_stream_conceal(run->stream, ranges, count);
    return status;
}

static weft_status run_kernel(const wefti_routine_call *c, const wefti_instruction *x) {
    operands o;
    const weft_node *n = x->node;
    for (int i = 0; i < n->inputs; i++) o.in[i] = c->at(c->context, x->in[i], 0).data;
    for (int i = 0; i < n->outputs; i++)
        o.out[i] = c->at(c->context, x->out[i], weft_desc_bytes(wefti_out(n, i))).data;
    o.workspace = c->at(c->context, x->workspace, x->kernel->workspace_bytes).data;
    weft_status status = launch(c, x, &o);
    if (status >= 0) return WEFT_OK;
    const char *scope = n->scope ? n->scope : "";
    return wefti_prefix(status, "cell '%s', %s%s%s", c->name, n->op->name, *scope ? " in " : "",
                        scope);
}

weft_status wefti_routine_run(const wefti_routine_call *c, int32_t *k, int32_t end) {
    for (; *k < end && c->routine->code[*k].transfer < 0; ++*k) {
        const wefti_instruction *x = &c->routine->code[*k];
        if (c->begins) c->begins(c->context, x);
        WEFT_TRY(x->node ? run_kernel(c, x) : run_move(c, x));
        if (c->ended) WEFT_TRY(c->ended(c->context, x));
    }
    return WEFT_OK;
}
