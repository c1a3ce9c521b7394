/* The cases of test_cpu_ops.c beside the ops' own cases: larger and odder shapes, the tolerance of
 * each op's results, and the cases that the reference backend may run. */
#ifndef TESTS_BACKEND_CPU_OPS_CASES_H
#define TESTS_BACKEND_CPU_OPS_CASES_H

#include "ops/harness.h"

typedef struct shaped {
    const char *op;
    wefti_op_case c;
} shaped;

#define SHAPED(op_, attrs_, ...)                                                                   \
    {                                                                                              \
        op_, {                                                                                     \
            {__VA_ARGS__}, attrs_                                                                  \
        }                                                                                          \
    }

/* Sizes that are multiples of nothing, sizes 0 and 1, operands that repeat in every way, more
 * elements than a task or a block of any kernel. */
static const shaped shapes[] = {
    SHAPED("add", NULL, "f32[3,129,65]", "f32[65]"),
    SHAPED("add", NULL, "f32[7,1,33]", "f32[5,1]"),
    SHAPED("sub", NULL, "f32[2,3,1,5,7]", "f32[3,4,1,7]"),
    SHAPED("sub", NULL, "f32[]", "f32[8193]"),
    SHAPED("mul", NULL, "f32[513,17]", "f32[513,1]"),
    SHAPED("mul", NULL, "f32[1,1,9]", "f32[4,1,9]"),
    SHAPED("add", NULL, "f32[3,1]", "f32[1,4099]"),
    SHAPED("add", NULL, "f32[17,1031]", "f32[17,1031]"),
    SHAPED("mul", NULL, "f32[2,1,3,1,5]", "f32[2,4,3,2,5]"),
    SHAPED("mul", NULL, "f32[5,0,3]", "f32[1,3]"),
    SHAPED("maximum", NULL, "f32[129,1,3]", "f32[2,3]"),
    SHAPED("where", NULL, "bool[33,1,5]?", "f32[33,7,5]", "f32[7,1]"),
    SHAPED("compare", "relation=2", "f32[1000]", "f32[1000]"),
    SHAPED("compare", "relation=4", "f32[9,1,11]", "f32[5,1]"),
    SHAPED("gelu", NULL, "f32[8191]"),
    SHAPED("gelu", NULL, "f32[3,5,4099]"),
    SHAPED("gelu_grad", NULL, "f32[3,5,4099]", "f32[3,5,4099]"),
    SHAPED("silu_grad", NULL, "f32[8193]", "f32[8193]"),
    SHAPED("clip_grad", "low=-0.25 high=0.5", "f32[1027]", "f32[1027]"),
    SHAPED("dropout", "rate=0.1", "f32[37,129]"),
    SHAPED("dropout", "rate=0.7", "f32[2,3,8191]"),
    SHAPED("dropout", "rate=0.3 whole=(9,40,300) begin=(2,0,0)", "f32[5,40,300]"),
    SHAPED("dropout", "rate=0.3 whole=(9,40,300) begin=(2,3,130)", "f32[5,37,129]"),
    SHAPED("dropout", "rate=0.3 whole=(9,40,300) begin=(2,3,130)", "f32[5,37,1]"),
    SHAPED("cross_entropy_part", "smoothing=0.1 ignore=7 begin=300 whole=1031", "f32[33,515]",
           "i32[33]<1031"),
    SHAPED("cross_entropy_grad", "smoothing=0.1 ignore=7 begin=300 whole=1031", "f32[33,515]",
           "i32[33]<1031", "f32[33]+", "f32[]+", "f32[]"),
    SHAPED("attention", "causal=1 dropout=0.2 whole=(3,8,200,200) begin=(1,4,100,33)",
           "f32[2,67,4,16]", "f32[2,100,2,16]", "f32[2,100,2,16]"),
    SHAPED("attention", "causal=1 whole=(1,2,200,200) begin=(0,0,20,30)", "f32[1,67,2,16]",
           "f32[1,100,2,16]", "f32[1,100,2,16]"),
    SHAPED("attention_grad", "causal=1 dropout=0.2 whole=(3,8,200,200) begin=(1,4,100,33)",
           "f32[2,67,4,16]", "f32[2,100,2,16]", "f32[2,100,2,16]", "f32[2,67,4,16]",
           "f32[2,2,4,67]+", "f32[2,67,4,16]"),
    SHAPED("cast", "dtype=i32", "f32[1000]"),
    SHAPED("cast", "dtype=u8", "f32[1000]"),
    SHAPED("cast", "dtype=bool", "f32[1000]<2"),
    SHAPED("cast", "dtype=f32", "u8[1000]<256"),
    SHAPED("cast", "dtype=i64", "f32[1000]"),
    SHAPED("cast", "dtype=f16", "f32[1000]"),
    SHAPED("broadcast_to", "shape=(3,4,5,6)", "f32[4,1,6]"),
    SHAPED("broadcast_to", "shape=(300,77)", "f32[77]"),
    SHAPED("broadcast_to", "shape=(5,7)", "i32[5,1]<100"),
    SHAPED("constant", "shape=(17,1031) value=-0.375"),
    SHAPED("constant", "shape=(129) dtype=bf16 value=3"),
    SHAPED("constant", "shape=(7) dtype=i32 value=-5"),
    SHAPED("sum_to", "shape=(257)", "f32[1000,257]"),
    SHAPED("sum_to", "shape=(257) dtype=bf16", "f32[100,257]"),
    SHAPED("sum_to", "shape=(33)", "f32[4,129,33]"),
    SHAPED("sum_to", "shape=(129,1)", "f32[4,129,33]"),
    SHAPED("sum_to", "shape=(4,1,33)", "f32[4,129,33]"),
    SHAPED("sum_to", "shape=()", "f32[20011]"),
    SHAPED("sum_to", "shape=(5,1,9)", "f32[3,5,7,9]"),
    SHAPED("sum_to", "shape=(3,1,1,9)", "f32[3,1,1,9]"),
    SHAPED("sum", "axes=(0,2)", "f32[9,17,33]"),
    SHAPED("sum", "axes=(1)", "f32[65,8193]"),
    SHAPED("sum", "axes=(0,1)", "f32[33,31,5]"),
    SHAPED("mean", "axes=(1,3) keep=1", "f32[3,7,5,9]"),
    SHAPED("mean", "axes=(0) count=1000", "f32[129,65]"),
    SHAPED("mean", "axes=(0,2) count=77", "f32[5,65,3]"),
    SHAPED("max", "axes=(2)", "f32[7,9,257]"),
    SHAPED("max", "axes=(0,2)", "f32[7,9,33]"),
    SHAPED("max_grad", "axes=(1)", "f32[3,33]<4", "f32[3]<4", "f32[3]"),
    SHAPED("argmax", "axis=1", "f32[33,257]"),
    SHAPED("argmax", "axis=0", "f32[33,257]<5"),
    SHAPED("grad_norm2", NULL, "f32[3,8209]"),
    SHAPED("linear", NULL, "f32[129,65]", "f32[65,257]", "f32[257]"),
    SHAPED("linear", "transposed=1", "f32[3,43,64]", "f32[1000,64]"),
    SHAPED("linear", NULL, "f32[1,37]", "f32[37,3,5]", "f32[3,5]"),
    SHAPED("linear_grad_input", NULL, "f32[129,257]", "f32[65,257]"),
    SHAPED("linear_grad_input", "transposed=1", "f32[31,3,5]", "f32[3,5,67]"),
    SHAPED("linear_grad_weight", NULL, "f32[129,65]", "f32[129,257]"),
    SHAPED("linear_grad_weight", "transposed=1 dims=2", "f32[2,33,17]", "f32[2,33,3,5]"),
    SHAPED("linear_grad_weight", NULL, "f32[1,1]", "f32[1,1]"),
    SHAPED("matmul", NULL, "f32[129,65]", "f32[65,33]"),
    SHAPED("matmul", "transpose_b=1", "f32[2,1,17,19]", "f32[1,3,23,19]"),
    SHAPED("matmul", "transpose_a=1", "f32[2,3,5,19,17]", "f32[2,1,5,19,7]"),
    SHAPED("matmul", NULL, "f32[5,7]", "f32[2,3,7,9]"),
    SHAPED("matmul", NULL, "f32[4,1,5,7]", "f32[7,9]"),
    SHAPED("matmul", NULL, "f32[2,0,3,5]", "f32[5,7]"),
    SHAPED("softmax", "axis=1", "f32[129,257]"),
    SHAPED("softmax", "axis=0", "f32[33,65]"),
    SHAPED("softmax_grad", "axis=2", "f32[3,5,1000]", "f32[3,5,1000]"),
    SHAPED("log_softmax", "axis=1", "f32[33,1000]"),
    SHAPED("log_softmax_grad", "axis=1", "f32[33,257]", "f32[33,257]"),
    SHAPED("cross_entropy", NULL, "f32[129,257]", "i32[129]<257"),
    SHAPED("cross_entropy", "ignore=3 smoothing=0.1", "f32[3,7,1000]", "i32[3,7]<9"),
    SHAPED("cross_entropy_grad", "ignore=3 smoothing=0.1", "f32[3,7,1000]", "i32[3,7]<9",
           "f32[3,7]+", "f32[]+", "f32[]"),
    SHAPED("cross_entropy_grad", NULL, "f32[129,257]", "i32[129]<300", "f32[129]+", "f32[]+",
           "f32[]"),
    SHAPED("linear_cross_entropy", NULL, "f32[65,33]", "f32[33,257]", "i32[65]<257", "f32[]"),
    SHAPED("linear_cross_entropy", "transposed=1 ignore=5 smoothing=0.1", "f32[3,11,64]",
           "f32[1000,64]", "i32[3,11]<9", "f32[]"),
    SHAPED("linear_cross_entropy", "transposed=1", "f32[67,64]", "f32[257,64]", "i32[67]<257",
           "f32[]", "-", "f32[257]"),
    SHAPED("linear_cross_entropy", "smoothing=0.1", "f32[64,48]", "f32[48,64]", "i32[64]<64",
           "f32[]", "f32[]+", "f32[64]"),
    SHAPED("mse", NULL, "f32[17,1031]", "f32[17,1031]"),
    SHAPED("mse", "count=7", "f32[9001]", "f32[9001]"),
    SHAPED("mse_grad", NULL, "f32[17,1031]", "f32[17,1031]", "f32[]"),
    SHAPED("mse_grad", "count=7", "f32[9001]", "f32[9001]", "f32[]"),
    SHAPED("layer_norm", NULL, "f32[129,257]", "f32[257]", "f32[257]"),
    SHAPED("layer_norm", NULL, "f32[3,1,768]", "f32[768]", "-"),
    SHAPED("layer_norm_apply", NULL, "f32[129,257]", "f32[257]", "f32[257]", "f32[129]",
           "f32[129]+"),
    SHAPED("layer_norm_apply", NULL, "f32[3,8,33]", "f32[33]", "-", "f32[3,8]", "f32[3,8]+"),
    SHAPED("layer_norm_grad", NULL, "f32[3,43,257]", "f32[257]", "f32[3,43]", "f32[3,43]+",
           "f32[3,43,257]"),
    SHAPED("rms_norm", NULL, "f32[129,257]", "f32[257]"),
    SHAPED("rms_norm_apply", NULL, "f32[129,257]", "f32[257]", "f32[129]+"),
    SHAPED("rms_norm_grad", NULL, "f32[129,257]", "f32[257]", "f32[129]+", "f32[129,257]"),
    SHAPED("embedding", NULL, "f32[257,65]", "i32[3,43]<257"),
    SHAPED("embedding", "dtype=bf16", "f32[257,65]", "i32[129]<257"),
    SHAPED("embedding_grad", "vocab=257", "i32[3,43]<257", "f32[3,43,65]"),
    SHAPED("embedding_grad", "vocab=5", "i32[300]<9", "f32[300,17]"),
    SHAPED("embedding_grad", "vocab=5 begin=3 padding=4", "i32[300]<9", "f32[300,17]"),
    SHAPED("attention", "causal=1", "f32[2,65,4,16]", "f32[2,65,4,16]", "f32[2,65,4,16]"),
    SHAPED("attention", "causal=1", "f32[1,33,4,64]", "f32[1,33,2,64]", "f32[1,33,2,64]"),
    SHAPED("attention", NULL, "f32[1,17,3,80]", "f32[1,131,1,80]", "f32[1,131,1,80]"),
    SHAPED("attention", "causal=1 dropout=0.2", "f32[2,37,2,128]", "f32[2,37,1,128]",
           "f32[2,37,1,128]"),
    SHAPED("attention", "causal=1", "f32[2,1,4,32]", "f32[2,77,4,32]", "f32[2,77,4,32]", "-",
           "i32[]<77"),
    SHAPED("attention", NULL, "f32[2,9,3,24]", "f32[2,67,3,24]", "f32[2,67,3,24]",
           "bool[2,1,9,67]?"),
    SHAPED("attention", NULL, "f32[2,9,3,24]", "f32[2,67,3,24]", "f32[2,67,3,24]", "f32[1,3,9,67]"),
    SHAPED("attention", NULL, "f32[1,3,2,8]", "f32[1,0,2,8]", "f32[1,0,2,8]"),
    SHAPED("attention", "causal=1 window=20", "f32[2,165,2,16]", "f32[2,165,1,16]",
           "f32[2,165,1,16]"),
    SHAPED("attention", "causal=1 window=70", "f32[2,1,4,32]", "f32[2,177,4,32]", "f32[2,177,4,32]",
           "-", "i32[]<177"),
    SHAPED("attention_grad", "causal=1 window=33", "f32[1,165,2,16]", "f32[1,165,1,16]",
           "f32[1,165,1,16]", "f32[1,165,2,16]", "f32[2,1,2,165]+", "f32[1,165,2,16]"),
    SHAPED("attention_mask_grad", "causal=1 window=9", "f32[2,65,2,16]", "f32[2,131,2,16]",
           "f32[2,131,2,16]", "f32[2,65,2,16]", "f32[2,2,2,65]+", "f32[2,65,2,16]",
           "f32[2,1,65,131]"),
    SHAPED("attention_grad", "causal=1", "f32[2,65,4,16]", "f32[2,65,4,16]", "f32[2,65,4,16]",
           "f32[2,65,4,16]", "f32[2,2,4,65]+", "f32[2,65,4,16]"),
    SHAPED("attention_grad", "causal=1 dropout=0.2", "f32[1,33,4,64]", "f32[1,33,2,64]",
           "f32[1,33,2,64]", "f32[1,33,4,64]", "f32[2,1,4,33]+", "f32[1,33,4,64]"),
    SHAPED("attention_grad", NULL, "f32[1,17,2,128]", "f32[1,67,1,128]", "f32[1,67,1,128]",
           "f32[1,17,2,128]", "f32[2,1,2,17]+", "f32[1,17,2,128]"),
    SHAPED("attention_mask_grad", "causal=1", "f32[2,65,4,16]", "f32[2,65,4,16]", "f32[2,65,4,16]",
           "f32[2,65,4,16]", "f32[2,2,4,65]+", "f32[2,65,4,16]", "f32[1,4,65,65]"),
    SHAPED("attention_mask_grad", "causal=1 dropout=0.2", "f32[2,33,4,24]", "f32[2,131,2,24]",
           "f32[2,131,2,24]", "f32[2,33,4,24]", "f32[2,2,4,33]+", "f32[2,33,4,24]",
           "f32[2,1,33,131]"),
    SHAPED("attention_mask_grad", NULL, "f32[3,17,2,128]", "f32[3,67,1,128]", "f32[3,67,1,128]",
           "f32[3,17,2,128]", "f32[2,3,2,17]+", "f32[3,17,2,128]", "f32[1,1,17,67]"),
    SHAPED("attention_mask_grad", NULL, "f32[0,3,2,4]", "f32[0,3,2,4]", "f32[0,3,2,4]",
           "f32[0,3,2,4]", "f32[2,0,2,3]", "f32[0,3,2,4]", "f32[1,2,3,3]"),
    SHAPED("attention_grad", NULL, "f32[0,3,2,4]", "f32[0,3,2,4]", "f32[0,3,2,4]", "f32[0,3,2,4]",
           "f32[2,0,2,3]+", "f32[0,3,2,4]"),
    SHAPED("rope", NULL, "f32[2,33,3,64]"),
    SHAPED("rope", "theta=500000 offset=1000", "f32[1,33,3,80]"),
    SHAPED("rope", "offset=7", "f32[2,3,5,16]", "i32[]<1000"),
    SHAPED("rope", "theta=500000 factor=8 low=1 high=4 original=8192", "f32[1,33,3,64]"),
    SHAPED("rope", "theta=500 factor=4", "f32[1,5,3,16]", "i32[]<1000"),
    SHAPED("rope_grad", "offset=3", "f32[2,33,3,128]"),
    SHAPED("rope_grad", "theta=1000 factor=8 low=1 high=4 original=32", "f32[2,9,1,32]"),
    SHAPED("rope_grad", "theta=100", "f32[2,3,1,6]", "i32[]<50"),
    SHAPED("cache_write", NULL, "f32[3,65,4,16]", "f32[3,7,4,16]", "i32[]<59"),
    SHAPED("cache_write", NULL, "f32[3,65,4,16]", "f32[3,7,4,16]", "i32[3]<59"),
    SHAPED("rope", "theta=500", "f32[5,3,4,16]", "i32[5]<1000"),
    SHAPED("rope", "theta=500", "f32[5,1,4,16]", "i32[5,2]<1000"),
    SHAPED("attention", "causal=1", "f32[9,1,4,64]", "f32[4,200,2,64]", "f32[4,200,2,64]", "-",
           "i32[9,2]<4"),
    SHAPED("attention", "causal=1", "f32[3,33,4,32]", "f32[40,90,2,32]", "f32[40,90,2,32]", "-",
           "i32[3,2]<40"),
    SHAPED("attention", "causal=1", "f32[5,1,4,64]", "f32[5,200,2,64]", "f32[5,200,2,64]", "-",
           "i32[5]<200"),
    SHAPED("attention", "causal=1 window=40", "f32[4,3,2,32]", "f32[4,150,2,32]", "f32[4,150,2,32]",
           "-", "i32[4]<148"),
    SHAPED("attention", "causal=1", "f32[3,150,2,32]", "f32[3,300,2,32]", "f32[3,300,2,32]", "-",
           "i32[3]<150"),
    SHAPED("attention", "causal=1", "bf16[3,40,2,64]", "bf16[3,100,2,64]", "bf16[3,100,2,64]", "-",
           "i32[3]<60"),
    SHAPED("transpose", "order=(0,2,1,3)", "f32[2,33,5,17]"),
    SHAPED("transpose", "order=(1,0)", "f32[129,257]"),
    SHAPED("transpose", "order=(3,1,2,0)", "f32[3,1,5,33]"),
    SHAPED("transpose", "order=(1,0)", "bool[9,33]?"),
    SHAPED("slice", "axis=0 begin=3 end=9", "f32[17,5,3]"),
    SHAPED("slice", "axis=1 begin=1 end=32", "f32[17,33,3]"),
    SHAPED("slice", "axis=2 begin=5 end=6", "f32[17,3,33]"),
    SHAPED("slice", "axis=1 begin=2 end=2", "f32[3,5]"),
    SHAPED("concat", "axis=1", "f32[17,3,5]", "f32[17,1,5]", "f32[17,7,5]"),
    SHAPED("concat", "axis=2", "f32[4,25,1,33]", "f32[4,25,1,33]", "f32[4,25,1,33]"),
    SHAPED("concat", "axis=1", "f32[3,0]", "f32[3,5]"),
    SHAPED("chunk", "axis=2 parts=3", "f32[4,25,3,129]"),
    SHAPED("chunk", "axis=1 parts=5", "f32[33,15]"),
    SHAPED("pad", "before=(0,3) after=(2,1) value=-2", "f32[33,65]"),
    SHAPED("pad", "before=(1,0,2) after=(0,1,3)", "f32[7,5,33]"),
    SHAPED("pad", "before=(1,1) after=(1,1) value=7", "i32[3,5]<9"),
    SHAPED("gather", "axis=0", "f32[257,65]", "i32[129]<300"),
    SHAPED("gather", "axis=2", "f32[3,5,33,7]", "i32[9]<33"),
    SHAPED("scatter_add", "axis=0", "f32[257,65]", "i32[129]<300", "f32[129,65]"),
    SHAPED("scatter_add", "axis=1", "f32[3,5,7]", "i32[300]<5", "f32[3,300,7]"),
    SHAPED("one_hot", "classes=257", "i32[3,43]<300"),
    SHAPED("top_k", "k=17", "f32[33,257]"),
    SHAPED("top_k", "k=3", "f32[3,5,33]<4"),
    SHAPED("top_k_grad", "classes=257", "i32[33,5]<257", "f32[33,5]"),
    SHAPED("moe_slots", "experts=8 capacity=31", "i32[5,33,2]<8"),
    SHAPED("moe_slots", "experts=5 capacity=1000", "i32[257,1]<6"),
    SHAPED("moe_slots", "experts=4 capacity=7 part=1", "i32[2,3,9,2]<4", "i32[2,3,4,2,4]<3"),
    SHAPED("moe_counts", "experts=8", "i32[5,33,2]<9"),
    SHAPED("moe_dispatch", "experts=5 capacity=61", "f32[3,33,65]", "i32[3,33,2]<5",
           "i32[3,33,2]<61", "f32[3,33,2]"),
    SHAPED("moe_dispatch", "experts=3 capacity=700", "f32[129,17]", "i32[129,2]<3",
           "i32[129,2]<900"),
    SHAPED("moe_combine", NULL, "f32[5,3,61,65]", "i32[3,33,4]<5", "i32[3,33,4]<61", "f32[3,33,4]"),
    SHAPED("moe_combine", "first_expert=2 first_slot=9", "f32[3,40,1031]", "i32[33,2]<7",
           "i32[33,2]<50"),
    SHAPED("moe_dot", NULL, "f32[5,3,61,65]", "i32[3,33,4]<5", "i32[3,33,4]<61", "f32[3,33,65]"),
    SHAPED("moe_linear", NULL, "f32[3,65,33]", "f32[3,33,129]", "i32[3]<65"),
    SHAPED("moe_linear", "transposed=1", "f32[2,9,101,33]", "f32[2,17,33]", "i32[2,9]<101"),
    SHAPED("moe_linear", "first_row=16", "f32[2,3,400,257]", "f32[2,257,300]", "i32[2,3]<400"),
    SHAPED("moe_linear", "transposed=1", "f32[2,1200,65]", "f32[2,17,65]"),
    SHAPED("moe_linear_grad_weight", NULL, "f32[3,65,33]", "f32[3,65,129]", "i32[3]<65"),
    SHAPED("moe_linear_grad_weight", "transposed=1", "f32[2,9,101,33]", "f32[2,9,101,17]",
           "i32[2,9]<101"),
    SHAPED("moe_linear_grad_weight", NULL, "f32[2,3,400,257]", "f32[2,3,400,300]", "i32[2,3]<400"),
    SHAPED("opt_sgd", "momentum=0.9 nesterov=1 weight_decay=0.1", "f32[17,1031]", "f32[17,1031]",
           "f32[17,1031]", "f32[8]+"),
    SHAPED("opt_adam", "weight_decay=0.1", "f32[17,1031]", "f32[17,1031]", "f32[17,1031]+",
           "f32[17,1031]", "f32[8]+"),
    SHAPED("opt_adamw", "weight_decay=0.1", "f32[17,1031]", "f32[17,1031]", "f32[17,1031]+",
           "f32[17,1031]", "f32[8]+"),
    SHAPED("opt_lion", "weight_decay=0.1", "f32[9001]", "f32[9001]", "f32[9001]", "f32[8]+"),
    SHAPED("opt_adagrad", "weight_decay=0.1 initial_accumulator=0.1", "f32[17,1031]",
           "f32[17,1031]+", "f32[17,1031]", "f32[8]+"),
    SHAPED("opt_sgd", "momentum=0.9", "f32[3001,17]", "f32[3001,17]", "f32[2000,17]", "f32[8]+",
           "i32[2000]!3001"),
    SHAPED("opt_adamw", "weight_decay=0.1", "f32[9001,33]", "f32[9001,33]", "f32[9001,33]+",
           "f32[700,33]", "f32[8]+", "i32[700]!9009"),
    SHAPED("opt_lion", "weight_decay=0.1", "f32[301,5]", "f32[301,5]", "f32[301,5]", "f32[8]+",
           "i32[301]!301"),
    SHAPED("opt_adagrad", NULL, "f32[5,9001]", "f32[5,9001]+", "f32[2,9001]", "f32[8]+",
           "i32[2]!5"),
    SHAPED("lamb_squares", "weight_decay=0.1", "f32[17,1031]", "f32[17,1031]", "f32[17,1031]+",
           "f32[17,1031]", "f32[8]+"),
    SHAPED("opt_lamb", "weight_decay=0.1", "f32[17,1031]", "f32[17,1031]", "f32[17,1031]+",
           "f32[17,1031]", "f32[8]+", "f32[2]+"),
    SHAPED("opt_adafactor", "weight_decay=0.1 count=99999", "f32[129,257]", "f32[129]+",
           "f32[257]+", "f32[129,257]", "f32[8]+", "f32[129]+", "f32[257]+", "f32[]+", "f32[2]+"),
    SHAPED("opt_adafactor1", "count=99999", "f32[9001]", "f32[9001]+", "f32[9001]", "f32[8]+",
           "f32[2]+"),
    SHAPED("opt_lamb", "weight_decay=0.1", "f32[17,1031]", "f32[17,1031]", "f32[17,1031]+",
           "f32[17,1031]", "f32[8]+"),
    SHAPED("opt_adafactor", "weight_decay=0.1", "f32[129,257]", "f32[129]+", "f32[257]+",
           "f32[129,257]", "f32[8]+"),
    SHAPED("opt_adafactor", NULL, "f32[1,33,65]", "f32[1,33]+", "f32[1,65]+", "f32[1,33,65]",
           "f32[8]+"),
    SHAPED("opt_adafactor1", NULL, "f32[9001]", "f32[9001]+", "f32[9001]", "f32[8]+"),
};

/* ---- how far a result may lie from the reference ----
 *
 * The reference computes in double on the same operands, so it stands for the exact value. With
 * eps = 2^-24 (2^-53 for f64 products) and the rounding of the stored dtype on top:
 *
 * EXACT: nothing is computed, or nothing that rounds. The bits are the reference's.
 *
 * ELEMENT, factor eps (|y| + 1): a few roundings of values that are around 1.
 *
 * TERMS, factor eps sum |terms|: sums. The sum is the same reference on absolute operands. The
 * roundings of n terms are independent and grow as sqrt(n), and kernels add by blocks: the factor
 * covers over a thousand terms.
 *
 * SCALE, factor eps (1 + max |y|): statistics of rows mix all elements of the result; chains of ops
 * carry the errors of values larger than their results. */
typedef enum closeness { EXACT, ELEMENT, TERMS, SCALE } closeness;

typedef struct bound {
    const char *op;
    closeness kind;
    double factor;
} bound;

/* The first row that fits: "*" at the end of a name fits any rest. */
static const bound bounds[] = {
    {"compare", EXACT, 0},
    {"where", EXACT, 0},
    {"constant", EXACT, 0},
    {"broadcast_to", EXACT, 0},
    {"max", EXACT, 0},
    {"argmax", EXACT, 0},
    {"maximum", EXACT, 0},
    {"minimum", EXACT, 0},
    {"embedding", EXACT, 0},
    {"cache_write", EXACT, 0},
    {"max_pool2d", EXACT, 0},
    {"reshape", EXACT, 0},
    {"transpose", EXACT, 0},
    {"slice", EXACT, 0},
    {"concat", EXACT, 0},
    {"chunk", EXACT, 0},
    {"pad", EXACT, 0},
    {"gather", EXACT, 0},
    {"one_hot", EXACT, 0},
    {"top_k", EXACT, 0},
    {"moe_slots", EXACT, 0},
    {"moe_counts", EXACT, 0},
    {"moe_*", TERMS, 32},
    {"neg", EXACT, 0},
    {"abs", EXACT, 0},
    {"sign", EXACT, 0},
    {"relu", EXACT, 0},
    {"relu_grad", EXACT, 0},
    {"clip_grad", EXACT, 0},
    {"cast", EXACT, 0},
    {"sum_to", TERMS, 32},
    {"sum", TERMS, 32},
    {"mean", TERMS, 32},
    {"linear", TERMS, 32},
    {"linear_grad_*", TERMS, 32},
    {"matmul", TERMS, 32},
    {"conv*", TERMS, 32},
    {"embedding_grad", TERMS, 32},
    {"scatter_add", TERMS, 32},
    {"top_k_grad", TERMS, 32},
    {"avg_pool2d*", TERMS, 32},
    {"max_pool2d_grad", TERMS, 32},
    {"grad_norm2", TERMS, 32},
    {"mse", SCALE, 64},
    {"max_grad", SCALE, 8},
    {"softmax*", SCALE, 64},
    {"log_softmax*", SCALE, 64},
    {"cross_entropy*", SCALE, 64},
    {"linear_cross_entropy", SCALE, 256},
    {"layer_norm*", SCALE, 128},
    {"rms_norm*", SCALE, 128},
    {"batch_norm*", SCALE, 256},
    {"attention*", SCALE, 256},
    {"rope*", SCALE, 16},
    {"opt_*", SCALE, 64},
    {"lamb_squares", SCALE, 64},
    {"fused", SCALE, 256},
    {"*", ELEMENT, 16},
};

/* ---- what may be left to the reference backend ---- */

static inline bool has_dtype(const op_setup *s, weft_dtype dtype) {
    for (int i = 0; i < s->inputs; i++)
        if (s->in[i].style != '-' && s->in[i].desc.dtype == dtype) return true;
    return false;
}
static inline bool odd_float(const op_setup *s) {
    return has_dtype(s, WEFT_F64) || has_dtype(s, WEFT_F16);
}
/* Arithmetic that f32 cannot do exactly. */
static inline bool integers(const op_setup *s) {
    bool arithmetic = (s->op->flags & WEFTI_OP_ELEMENTWISE) || !strcmp(s->op->name, "argmax");
    return arithmetic && (has_dtype(s, WEFT_I32) || has_dtype(s, WEFT_I64));
}
static inline bool attr_is(const op_setup *s, wefti_attr_id id, int64_t value) {
    for (const wefti_attr *a = s->attrs; a->id; a++)
        if (a->id == id) return a->i == value;
    return false;
}
static inline bool stored_f16(const op_setup *s) {
    return attr_is(s, WEFTI_AT_dtype, WEFT_F16) || attr_is(s, WEFTI_AT_dtype, WEFT_F64);
}
static inline bool middle_axis(const op_setup *s) {
    return !attr_is(s, WEFTI_AT_axis, s->in[0].desc.rank - 1);
}
static inline bool empty(const op_setup *s) {
    return weft_desc_elems(&s->in[0].desc) == 0;
}
/* An operand from number `first` on is bf16. */
static inline bool bf16_from(const op_setup *s, int first) {
    for (int i = first; i < s->inputs; i++)
        if (s->in[i].style != '-' && s->in[i].desc.dtype == WEFT_BF16) return true;
    return false;
}
static inline bool bf16_after_1(const op_setup *s) {
    return bf16_from(s, 1);
}
static inline bool bf16_after_2(const op_setup *s) {
    return bf16_from(s, 2);
}
static inline bool bf16_state(const op_setup *s) {
    int gradient = s->op->gradient_input;
    for (int i = 0; i < s->inputs; i++)
        if (i != gradient && s->in[i].style != '-' && s->in[i].desc.dtype == WEFT_BF16) return true;
    return false;
}
static inline bool bf16_lse(const op_setup *s) {
    return s->in[4].desc.dtype == WEFT_BF16;
}
static inline bool bf16_mask(const op_setup *s) {
    return s->in[6].desc.dtype == WEFT_BF16;
}
static inline bool bf16_x(const op_setup *s) {
    return s->in[0].desc.dtype == WEFT_BF16;
}
static inline bool bf16_dloss(const op_setup *s) {
    return bf16_from(s, 3);
}
static inline bool bf16_result(const op_setup *s) {
    return s->in[1].desc.dtype == WEFT_BF16;
}
static inline bool several_matrices(const op_setup *s) {
    const weft_desc *p = &s->in[0].desc;
    return p->shape[p->rank - 2] * p->shape[p->rank - 1] != weft_desc_elems(p);
}
static inline bool group(const op_setup *s) {
    return (s->op->flags & WEFTI_OP_GROUP) != 0;
}
static inline bool grows(const op_setup *s) {
    return (s->op->flags & WEFTI_OP_ADDS) != 0;
}
static inline bool always(const op_setup *s) {
    (void)s;
    return true;
}

typedef struct allowed {
    const char *op, *why;
    bool (*when)(const op_setup *s);
} allowed;

static const allowed fallbacks[] = {
    {"*", "f64 and f16 are for checks and for files", odd_float},
    {"*", "f16 is for files", stored_f16},
    {"*", "f32 registers do not hold every integer", integers},
    {"*", "a transfer carries it out", group},
    {"*", "the executor adds in place", grows},
    {"max_grad", "rare", always},
    {"softmax*", "only the last dimension is fast", middle_axis},
    {"log_softmax*", "only the last dimension is fast", middle_axis},
    {"layer_norm*", "parameters and statistics are f32", bf16_after_1},
    {"rms_norm*", "parameters and statistics are f32", bf16_after_1},
    {"batch_norm*", "parameters and statistics are f32", bf16_after_1},
    {"batch_norm*", "nothing to normalise", empty},
    {"linear", "a bias is f32", bf16_after_2},
    {"linear_cross_entropy", "a loss and a count are f32", bf16_dloss},
    {"linear_cross_entropy", "no rows", empty},
    {"cross_entropy", "a count is f32", bf16_after_2},
    {"cross_entropy_part", "no classes", empty},
    {"count_targets", "statistics are f32", bf16_after_1},
    {"cross_entropy_grad", "statistics are f32", bf16_after_2},
    {"attention_grad", "statistics are f32", bf16_lse},
    {"attention_mask_grad", "statistics are f32", bf16_lse},
    {"attention_mask_grad", "sums are kept in f32", bf16_mask},
    {"scatter_add", "sums are kept in f32", bf16_x},
    {"rows_*", "parameters and their gradients are f32", bf16_x},
    {"top_k_grad", "sums are kept in f32", bf16_result},
    {"opt_*", "parameters, state and scalars are f32", bf16_state},
    {"lamb_squares", "parameters, state and scalars are f32", bf16_state},
    {"opt_adafactor", "norms span several matrices", several_matrices},
    {"opt_adafactor", "no rows", empty},
    {"conv*", "a bias is f32", bf16_after_2},
    {"conv*", "no images", empty},
};

static inline bool name_fits(const char *pattern, const char *name) {
    size_t n = strlen(pattern);
    if (n && pattern[n - 1] == '*') return !strncmp(pattern, name, n - 1);
    return !strcmp(pattern, name);
}

#endif
