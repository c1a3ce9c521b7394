/* The layouts of a job's tensors as a strategy file of MindSpore, and as redundancy groups. */
#include <string.h>

#include "base/io.h"
#include "base/text.h"
#include "plan/plan.h"
#include "reshard/reshard.h"
#include "setup/programs.h"

/* One tensor in files: a parameter, or a state of one under the parameter's name in files. */
static weft_status add_file_tensor(wefti_layouts *l, const wefti_program *program,
                                   const wefti_tensor *t, const char *name, const weft_desc *desc) {
    wefti_placement p = {.name = name,
                         .mesh = program->mesh,
                         .layout = t->layout,
                         .shard_step = 1,
                         .shard_size = 1,
                         .rank = desc->rank,
                         .shaped = true};
    const bool parts = weft_desc_elems(desc) != weft_desc_elems(&t->whole);
    memcpy(p.shape, desc->shape, sizeof p.shape);
    p.layout.rank = (int8_t)t->whole.rank;
    if (parts) {
        WEFT_REQUIRE(!p.layout.dim[0].count, WEFT_E_NO_IMPL,
                     "files store %s in parts, which a strategy file cannot place on ranks",
                     t->name);
        p.layout.rank--;
        memmove(p.layout.dim, p.layout.dim + 1, (WEFT_MAX_RANK - 1) * sizeof *p.layout.dim);
    }
    wefti_placement_merge(&p.layout, desc->rank);
    return wefti_layouts_add(l, &p);
}

static weft_status add_item(wefti_layouts *l, const wefti_placement *p) {
    const int32_t rank = p->rank;
    int64_t cuts[WEFT_MAX_RANK];
    for (int d = 0; d < rank; d++) cuts[d] = wefti_layout_parts(&p->layout, &p->mesh, d);
    return wefti_strategy_add_item(l, p->name, wefti_placement_stage(l, p), 1, &rank, cuts);
}

/* A state in files. It keeps its own shape. If files store the parameter in parts, its first
 * dimension counts the parts. `desc`: of the parameter in files. */
static weft_desc state_in_files(const wefti_tensor *t, const wefti_tensor *of,
                                const weft_desc *desc) {
    const bool parts = weft_desc_elems(desc) != weft_desc_elems(&of->whole);
    if (!parts || t->whole.rank == 0) return t->whole;
    return weft_desc_of(t->whole.dtype, t->whole.rank - 1, t->whole.shape + 1);
}

/* All parts of a tensor in files, each with the ending of a state. */
static weft_status add_tensor(wefti_layouts *l, const weft_model_config *config,
                              const wefti_program *program, const wefti_tensor *t) {
    const wefti_tensor *of = t->role == WEFTI_TENSOR_OPTIMIZER ? &program->tensors[t->param] : t;
    const char *state = t == of ? "" : t->name + strlen(of->name);
    char name[512];
    weft_desc desc;
    for (int64_t part = 0;; part++) {
        weft_status status =
            weft_model_file_name(config, of->name, &of->whole, part, name, sizeof name - 64, &desc);
        if (status == WEFT_E_NOT_FOUND && part > 0) return WEFT_OK;
        WEFT_TRY(status);
        WEFT_REQUIRE(strlen(name) + strlen(state) < sizeof name, WEFT_E_ARG,
                     "the name %s is too long", name);
        strcat(name, state);
        if (t != of) desc = state_in_files(t, of, &desc);
        WEFT_TRY(add_file_tensor(l, program, t, name, &desc));
        if (t == of) WEFT_TRY(add_item(l, &l->items[l->count - 1]));
    }
}

static weft_status add_stage(wefti_layouts *l, const wefti_job_programs *p, int32_t stage) {
    wefti_program *programs[2] = {NULL, NULL};
    const int32_t rank = p->plan ? wefti_plan_mesh(p->plan, stage).first : 0;
    weft_status status = wefti_job_programs_build(p, rank, true, programs);
    for (int32_t i = 0; status >= 0 && i < programs[0]->tensor_count; i++) {
        const wefti_tensor *t = &programs[0]->tensors[i];
        if (t->role <= WEFTI_TENSOR_OPTIMIZER)
            status = add_tensor(l, &p->built.model.config, programs[0], t);
    }
    wefti_program_destroy(programs[1]);
    wefti_program_destroy(programs[0]);
    return status;
}

static weft_status collect(const weft_job *job, wefti_layouts *l) {
    wefti_job_programs p;
    weft_status status = wefti_job_programs_open(job, &p);
    if (status >= 0) {
        l->ranks = p.devices;
        l->stages = p.plan ? p.plan->pipeline.stages : 1;
        if (p.plan && p.plan->pipeline.meshes)
            status =
                WEFT_RAISE(WEFT_E_NO_IMPL,
                           "a strategy file has equal meshes in all stages; this plan has not");
    }
    for (int32_t s = 0; s < l->stages && status >= 0; s++) status = add_stage(l, &p, s);
    wefti_job_programs_close(&p);
    return status;
}

weft_status weft_job_strategy_save(const weft_job *job, const char *path) {
    wefti_layouts *l;
    char *text = NULL;
    int64_t bytes = 0;
    WEFT_REQUIRE(job && path, WEFT_E_ARG, "weft_job_strategy_save needs a job and a path");
    const size_t length = strlen(path);
    WEFT_TRY(wefti_layouts_create("the plan", &l));
    weft_status status = collect(job, l);
    if (status >= 0)
        status = length > 5 && !strcmp(path + length - 5, ".json")
                     ? wefti_layouts_print_json(l, &text, &bytes)
                     : wefti_layouts_print_protobuf(l, &text, &bytes);
    if (status >= 0) status = wefti_file_write(path, text, (size_t)bytes);
    wefti_free(text);
    wefti_layouts_close(l);
    return status;
}

weft_status weft_job_redundancy(const weft_job *job, int json, char **out) {
    wefti_layouts *l;
    wefti_text text = {0};
    WEFT_REQUIRE(job && out, WEFT_E_ARG,
                 "weft_job_redundancy needs a job and a place for the text");
    WEFT_TRY(wefti_layouts_create("the plan", &l));
    weft_status status = collect(job, l);
    if (status >= 0) status = wefti_layouts_groups_text(l, json != 0, &text);
    wefti_layouts_close(l);
    return wefti_reshard_give(status, &text, out);
}
