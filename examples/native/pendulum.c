/* A pendulum with friction, swung for some steps, and the gradient of where it ends. */

#include <math.h>

/* Write the angle after each step into angles. Returns 1 where an angle is not finite. */
int swing(int steps, double dt, const double *start, const double *friction, double *angles)
{
    double angle = start[0], speed = start[1];
    for (int i = 0; i < steps; i++) {
        speed += dt * (-sin(angle) - friction[0] * speed);
        angle += dt * speed;
        angles[i] = angle;
    }
    return isfinite(angle) ? 0 : 1;
}

/* The same backwards: from the gradient of the loss by each angle to that by the start and the friction. */
void swing_vjp(int steps, double dt, const double *start, const double *friction, const double *grad_angles,
               double *speeds, double *grad_start, double *grad_friction, const double *angles)
{
    double speed = start[1], grad_angle = 0.0, grad_speed = 0.0;
    for (int i = 0; i < steps; i++) {
        speeds[i] = speed;
        speed += dt * (-sin(i ? angles[i - 1] : start[0]) - friction[0] * speed);
    }
    grad_friction[0] = 0.0;
    for (int i = steps - 1; i >= 0; i--) {
        grad_angle += grad_angles[i];
        grad_speed += dt * grad_angle;
        grad_friction[0] -= dt * speeds[i] * grad_speed;
        grad_angle -= dt * cos(i ? angles[i - 1] : start[0]) * grad_speed;
        grad_speed *= 1.0 - dt * friction[0];
    }
    grad_start[0] = grad_angle;
    grad_start[1] = grad_speed;
}
