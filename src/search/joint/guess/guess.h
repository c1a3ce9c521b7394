/* The numbers that guesses of the joint search rest on. None of them is in a bound. A wrong one
 * costs walks, or a good plan that is walked too late; no plan's prediction depends on it.
 *
 * They were tried on the named questions of bench/planner (8B, 175B, 405B, the mixture) and, since
 * there are random ones, on those: a value stayed if the answers came with fewer walks. No single
 * value was fitted to rows by itself. */
#ifndef WEFTI_JOINT_GUESS_H
#define WEFTI_JOINT_GUESS_H

/* clang-format off */
/*      name                           value      what it is                                              if it is wrong */

/* ---- seconds: guess/guess.c, search.c, order.c ---- */
#define WEFTI_GUESS_BACKWARD           0.66    /* the backward pass, of the work of both               : levels 0 to 2 come too early or late */
#define WEFTI_GUESS_OF_MICROBATCH      0.75    /* level 3: what no kernel hides, of all-reduces         : level 3 comes too early or late */
#define WEFTI_GUESS_MOVED              1.5     /* level 3: gathers and reductions, in all-reduces       : the same, with slow links */
#define WEFTI_GUESS_SPLIT_CONTEXT      1.5     /* level 3: how much longer on split sequences           : the same, with cp */
#define WEFTI_GUESS_BEHIND             0.75    /* levels 0 to 2: of an all-reduce, behind the last pass : these levels come too early or late */
#define WEFTI_GUESS_BESIDE             0.25    /* levels 0 to 2: of an all-reduce, beside that pass     : the same */
#define WEFTI_GUESS_LEVEL_2            0.1     /* level 2: of each further microbatch's all-reduce      : level 2 comes too early or late */
#define WEFTI_GUESS_LEVEL_2_CONTEXT    0.9     /* the same on split sequences                           : the same, with cp */
#define WEFTI_GUESS_UPDATE_KERNELS     2       /* of each parameter: its gradient's norm, and its update  : small models that stages divide */
#define WEFTI_GUESS_RECOMPUTED         0.9     /* of the forward pass: the head is not recomputed       : full recomputation comes too early or late */
#define WEFTI_GUESS_INNER              1.1     /* replicas that are not the outermost axis              : other orders of axes */
#define WEFTI_GUESS_SHARD              1.05    /* states that only some replicas share                  : shards */
#define WEFTI_GUESS_OF_SPLIT           1.06    /* a set known by its work turns out longer              : sets are opened too early or late */
#define WEFTI_GUESS_OF_DRAWN           1.09    /* one known by its line                                 : the same */
#define WEFTI_GUESS_OF_COARSE          1.12    /* one known by lines of two devices                     : the same */
#define WEFTI_GUESS_TIGHT              1.06    /* one that may not fit                                    : walks of plans that do not fit */
#define WEFTI_GUESS_KIND               0.2     /* for the first plan: for each step that is not known   : the first plan */
#define WEFTI_GUESS_FAR                1.1     /* of the best step: longer guesses wait                 : a phase ends too early or late */
#define WEFTI_GUESS_MISSING            0.5     /* of what a like split's guess lacked                   : corrections */

/* ---- bytes: bound/coarse.c, search.c ---- */
#define WEFTI_GUESS_MARGIN             0.92    /* of the limit: surely fits by its guess                : walks of plans that do not fit */
#define WEFTI_GUESS_LARGEST            1.06    /* of the limit: may fit                                 : plans that fit are tried last */
#define WEFTI_GUESS_KEPT               0.98    /* of the bytes that a line says are kept                : the same two */
#define WEFTI_GUESS_CHUNKS_KEPT        0.8     /* zero-bubble with chunks: more microbatches in flight  : the same two */
#define WEFTI_GUESS_RETRY              0.7     /* with the next mode of recomputation, of the bytes     : the order of retries */

/* ---- effort: walk.c, search.c ---- */
#define WEFTI_GUESS_COSTLY             1.8     /* of a phase's effort: a walk beyond it is put off      : time of a search */
#define WEFTI_GUESS_NEIGHBOURS         0.5     /* of a round's effort, for neighbours                   : time, and the local search */
#define WEFTI_GUESS_PLAIN              0.125   /* of it, for plain plans                                : time, and plain plans */
#define WEFTI_GUESS_FEW                24.0    /* devices: on fewer, local walks have a round's effort   : time, and answers for small machines */
#define WEFTI_GUESS_START              1.25    /* of the best step: no local search begins at longer plans : time, and the local search */
#define WEFTI_GUESS_CONTEXT_EFFORT     1.5     /* a walk's effort grows with cp to this power           : time of a search */
/* clang-format on */

#endif
