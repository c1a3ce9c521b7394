/* The cosine and sine table of rotary positions, in double precision: Su et al., "RoFormer", 2021,
 * section 3.2. The scaling is that of Llama 3.1: wavelengths longer than the original context are
 * stretched by `factor`, those shorter than a fraction of it are kept, those between are blended.
 */
#include <math.h>

#include "backend/cpu/kernels_data.h"

static double scaled(double frequency, const wefti_rope_scaling *scaling) {
    if (!scaling || scaling->factor <= 0.0f) return frequency;
    double wavelength = 2.0 * 3.14159265358979323846 / frequency;
    double context = (double)scaling->original_context, factor = (double)scaling->factor;
    double low = (double)scaling->low_freq_factor, high = (double)scaling->high_freq_factor;
    if (wavelength < context / high) return frequency;
    if (wavelength > context / low) return frequency / factor;
    double smooth = (context / wavelength - low) / (high - low);
    return (1.0 - smooth) * frequency / factor + smooth * frequency;
}

void wefti_rope_table(int64_t positions, int64_t rotary, double theta,
                      const wefti_rope_scaling *scaling, float *cos_out, float *sin_out) {
    int64_t half = rotary / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency = scaled(pow(theta, -2.0 * (double)i / (double)rotary), scaling);
        for (int64_t p = 0; p < positions; p++) {
            cos_out[p * half + i] = (float)cos((double)p * frequency);
            sin_out[p * half + i] = (float)sin((double)p * frequency);
        }
    }
}
