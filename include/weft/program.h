/* The programs of a job: the steps, transfers and memory of each device, as text. */
#ifndef WEFT_PROGRAM_H
#define WEFT_PROGRAM_H

#include "weft/job.h"
#include "weft/session.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Check and match the programs of all ranks, as weft_job_dry_run does, and describe one of them:
 * its coordinates on the mesh, memory, schedule with every transfer, cells with the layouts of
 * their operands and results, tensors. Nothing runs. Opens the data only if sizes depend on them.
 * Not collective.
 * @param rank  of the job's devices, from 0
 * @param out   freed with weft_text_free
 * @param out_unmatched  as for weft_job_plan; may be NULL
 * @return WEFT_E_ARG for a rank outside the job or an invalid job; WEFT_E_LAYOUT and others for a
 *   plan
 * that does not fit the model; WEFT_E_MISMATCH if the programs do not match */
WEFT_API weft_status weft_job_program_text(const weft_job *job, int rank, char **out,
                                           char **out_unmatched) WEFT_CHECKED;
/** The same as one JSON object and a newline. */
WEFT_API weft_status weft_job_program_json(const weft_job *job, int rank, char **out,
                                           char **out_unmatched) WEFT_CHECKED;

/** The plan of a session, completed: the strategies, layouts and stages that weft has chosen stand
 * beside those of the caller's plan. Not collective.
 * @param out  freed with weft_plan_destroy */
WEFT_API weft_status weft_session_plan(const weft_session *session, weft_plan **out) WEFT_CHECKED;
/** Describe the program of one device of a session, as weft_job_program_text does. Tensors that are
 * split show where the device's slice begins. Not collective.
 * @param program  0: the graph of weft_session_create; others: see weft_session_add
 * @param rank  a device of this process; in a world of several processes, its own rank; -1: the
 * first one of this process
 * @param out   freed with weft_text_free
 * @return WEFT_E_ARG for an unknown program, or a rank of another process */
WEFT_API weft_status weft_session_program_text(const weft_session *session, int program, int rank,
                                               char **out) WEFT_CHECKED;
/** The same as one JSON object and a newline (docs/reference/format-program.md). */
WEFT_API weft_status weft_session_program_json(const weft_session *session, int program, int rank,
                                               char **out) WEFT_CHECKED;

#ifdef __cplusplus
}
#endif
#endif
